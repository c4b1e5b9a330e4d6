"""Records: what ``dataclass(frozen=True)`` makes of a class, in less time.

dataclass writes and compiles five to seven functions for every class, which for all the classes that a command imports is a
fifth of what the command takes. Of those functions only the constructor and the refusals need to know the fields by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """``cls`` as a frozen dataclass, compared, hashed and shown by its fields as any other."""
    made = dataclass(frozen=True, eq=False, repr=False)(cls)
    for method in (__eq__, __hash__, __repr__):
        if method.__name__ not in vars(cls):
            setattr(made, method.__name__, method)
    return made


def _values(of: Any) -> tuple[Any, ...]:
    return tuple([getattr(of, name) for name in of.__match_args__])


def __eq__(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def __hash__(self: Any) -> int:
    return hash(_values(self))


def __repr__(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({shown})"
