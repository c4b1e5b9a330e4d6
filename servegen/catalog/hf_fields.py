"""Typed reading of a Hugging Face ``config.json``: every refusal names the field that is at fault."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from servegen.errors import CatalogError, Diagnostic

#: No published model has a dimension beyond this; a larger one is a typing error.
LARGEST_SIZE = 1 << 24
LARGEST_LAYERS = 2000
LARGEST_CONTEXT = 1 << 31


class Fields:
    """One mapping of a config, read with the type each field must have.

    ``rename`` gives other names under which a field may stand (``{"num_hidden_layers": ("n_layer",)}``), ``defaults``
    what the family's own configuration class takes for a field that is absent. Null counts as absent.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        model: str,
        path: str = "",
        rename: Mapping[str, tuple[str, ...]] | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.path = path
        self.rename = rename or {}
        self.defaults = defaults or {}

    def refuse(self, name: str, why: str, hint: str = "") -> NoReturn:
        """Raise the CatalogError that names the field ``name`` of this mapping."""
        raise CatalogError(
            Diagnostic("model-config", f"{self.model}: config field '{self.path}{name}': {why}", hint=hint)
        )

    def find(self, *names: str) -> tuple[str, object]:
        """The first of ``names`` (and their renames) that is present and not null, with its value; else ("", None)."""
        for wanted in names:
            for name in (wanted, *self.rename.get(wanted, ())):
                value = self.config.get(name)
                if value is not None:
                    return name, value
        for wanted in names:
            if self.defaults.get(wanted) is not None:
                return wanted, self.defaults[wanted]
        return "", None

    def has(self, *names: str) -> bool:
        return self.find(*names)[0] != ""

    def integer(self, *names: str, default: int | None = None, least: int = 0, most: int = LARGEST_SIZE) -> int:
        """An integer in [least, most]; without ``default`` the field is required."""
        name, value = self.find(*names)
        if not name:
            if default is None:
                self.refuse(names[0], "required, but missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, f"must be an integer, not {shown(value)}")
        if not least <= value <= most:
            self.refuse(name, f"must lie between {least} and {most}, not {shown(value)}")
        return value

    def size(self, *names: str, default: int | None = None, most: int = LARGEST_SIZE) -> int:
        """A dimension: an integer of at least 1; without ``default`` the field is required."""
        return self.integer(*names, default=default, least=1, most=most)

    def flag(self, name: str, default: bool = False) -> bool:
        found, value = self.find(name)
        if not found:
            return default
        if not isinstance(value, bool):
            self.refuse(found, f"must be true or false, not {shown(value)}")
        return value

    def number(self, *names: str) -> float | None:
        """A finite positive number, None if absent."""
        name, value = self.find(*names)
        if not name:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0 < value < 1e300
            or not math.isfinite(value)
        ):
            self.refuse(name, f"must be a positive number, not {shown(value)}")
        return float(value)

    def text(self, *names: str, default: str = "") -> str:
        name, value = self.find(*names)
        if not name:
            return default
        if not isinstance(value, str) or not value:
            self.refuse(name, f"must be a text, not {shown(value)}")
        return value

    def sub(self, *names: str, defaults: Mapping[str, object] | None = None) -> Fields | None:
        """The nested mapping of that name as Fields, None if absent."""
        name, value = self.find(*names)
        if not name:
            return None
        if not isinstance(value, Mapping):
            self.refuse(name, f"must be a mapping, not {shown(value)}")
        return Fields(value, self.model, f"{self.path}{name}.", defaults=defaults)

    def items(self, name: str) -> list[object] | None:
        """The list of that name, None if absent."""
        found, value = self.find(name)
        if not found:
            return None
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            self.refuse(found, f"must be a list, not {shown(value)}")
        return list(value)

    def texts(self, name: str) -> list[str]:
        """The list of texts of that name, empty if absent."""
        items = self.items(name) or []
        for item in items:
            if not isinstance(item, str) or not item:
                self.refuse(name, f"must be a list of texts, not one with {shown(item)}")
        return [str(item) for item in items]

    def integers(self, name: str) -> list[int] | None:
        """The list of integers of that name, None if absent."""
        items = self.items(name)
        if items is None:
            return None
        numbers: list[int] = []
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= LARGEST_SIZE:
                self.refuse(name, f"must be a list of integers, not one with {shown(item)}")
            numbers.append(item)
        return numbers

    def per_layer(self, name: str, layers: int, legal: Sequence[str]) -> list[str] | None:
        """A list with one of ``legal`` for each layer, None if absent."""
        if not self.has(name):
            return None
        values = self.texts(name)
        for value in values:
            if value not in legal:
                self.refuse(name, f"layer type {shown(value)} is not modelled", f"modelled: {', '.join(legal)}")
        if len(values) != layers:
            self.refuse(name, f"has {len(values)} entries for {layers} layers")
        return values


def shown(value: object) -> str:
    """A value as it may stand in a message: short, on one line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return f"a number of {len(hex(value)) - 2} hexadecimal digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
