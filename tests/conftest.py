"""Settings that hold for every test: property tests draw the same examples on every machine and keep no database."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("servegen", deadline=None, derandomize=True, database=None)
settings.load_profile("servegen")
