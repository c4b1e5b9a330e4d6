"""One replica under load: what it carries, what a client sees, how many replicas a load needs.

Modules, in the order of the data: ``demand`` (requests as numbers), ``server`` (what one replica takes to serve them),
``disciplines`` (the engine's way of batching as a steady state), ``latency`` (percentiles), ``size`` (the largest load
within the bounds, and the inverse).
"""
