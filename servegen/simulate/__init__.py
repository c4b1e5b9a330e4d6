"""Discrete-event replay of requests through a deployment: what `service/` claims in closed form, played out.

- `steps`: the step model of one replica as plain floats
- `requests`: one request, and the sources that send them: a list of arrivals, or users who wait for their answers
- `prefix`: the prefix cache, a radix tree of hashed blocks with LRU
- `schedulers`: what an engine does next; `engine`: one replica that does it
- `router`, `deployment`: which replica takes a request; replicas, or pools of prefill and decode servers
- `series`, `result`: what happened over time, and its percentiles
- `benchmark`: the closed-loop benchmark by which serving figures are published
"""
