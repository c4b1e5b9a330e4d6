from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from servegen.record import record


@record
class Point:
    """Some fields, one with a default and one with a default factory."""

    x: float
    label: str = "here"
    tags: dict[str, int] = field(default_factory=dict)


@record
class Place(Point):
    """A field more."""

    height: float = 0.0


@record
class Loose:
    """One with an equality of its own."""

    x: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loose)

    __hash__ = object.__hash__


def test_a_record_does_what_a_frozen_dataclass_does() -> None:
    twin = dataclass(frozen=True)(type("Point", (), {"__annotations__": {"x": "float", "label": "str"}, "label": "here"}))
    assert repr(twin(1.0)).replace("Point(", "") in repr(Point(1.0)).replace(", tags={}", "")
    assert repr(Place(1.0, height=2.0)) == "Place(x=1.0, label='here', tags={}, height=2.0)"
    assert Point(1.0) == Point(1.0, "here") != Point(1.0, "there")
    assert Point(math.nan) == Point(math.nan), "the same nan, as in a tuple"
    assert Point(1.0) != Place(1.0) and Point(1.0) != (1.0, "here", {})
    assert hash(Text("a")) == hash(Text("a")) != hash(Text("b"))
    assert [f.name for f in fields(Place)] == ["x", "label", "tags", "height"]
    assert replace(Point(1.0), x=2.0) == Point(2.0) == pickle.loads(pickle.dumps(Point(2.0)))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1.0))
    assert Loose(1.0) == Loose(2.0)


@record
class Text:
    """Hashable."""

    text: str


@pytest.mark.parametrize("name", ["x", "other"])
def test_a_record_is_not_changed(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(Point(1.0), name, 2.0)
    with pytest.raises(FrozenInstanceError):
        delattr(Point(1.0), name)
