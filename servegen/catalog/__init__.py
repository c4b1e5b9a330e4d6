"""Facts as data: accelerators, engines, models and prices, a source beside every figure.

``accelerators/*.yaml`` ``engines/*.yaml`` ``models/*.yaml`` ``prices.yaml`` hold the figures; ``facts.py`` the types
they load into; ``accelerators.py`` ``engines.py`` ``models.py`` turn a name into facts; ``hf.py`` reads a Hugging Face
``config.json``; ``loader.py`` finds and parses the one file that a name means and lists every figure with its source.
"""
