"""Plan -> files: the Jinja environment, the Kubernetes objects as views, and the layout of a bundle."""
