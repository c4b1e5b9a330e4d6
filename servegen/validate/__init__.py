"""Checks of a bundle that no schema tool makes: inside each object, between objects, and of the launch scripts."""
