"""servegen: a config compiler for LLM serving. A spec goes in; a solved plan, launch scripts and manifests come out."""

__version__ = "0.1.0"
