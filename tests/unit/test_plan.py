"""The IR: JSON round trip, canonical bytes, content hash."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servegen import plan as ir

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: float(f"{x:.9g}"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    float: NUMBER,
    int: st.integers(0, 10**15),
    str: TEXT,
    bool: st.booleans(),
    Any: JSON,
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of that type may hold, as the JSON round trip must keep it."""
    if hint in LEAVES:
        return LEAVES[hint]
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: values(hints[f.name]) for f in dataclasses.fields(hint)})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(a) for a in args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(a) for a in args))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, values(args[1]), max_size=2)
    raise TypeError(f"no strategy for {hint!r}")


PLANS = values(ir.Plan)
many = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def sample(hint: Any = ir.Plan, key: str = "plan") -> Any:
    """One plan with every container filled, each leaf different from the default of its type."""
    if hint is float:
        return 0.125
    if hint is int:
        return 3
    if hint is bool:
        return True
    if hint is str or hint is Any:
        return f"a {key}"
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: sample(hints[f.name], f.name) for f in dataclasses.fields(hint)})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return args[0]
    if origin in (typing.Union, types.UnionType):
        return sample(args[0], key)
    if origin is tuple:
        return (sample(args[0], key),) if args[-1] is Ellipsis else tuple(sample(a, key) for a in args)
    return {"one": sample(args[1], key)}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    spot = document
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    return document


@many
@given(PLANS)
def test_json_round_trip_gives_back_the_same_plan(plan: ir.Plan) -> None:
    assert ir.loads(ir.dumps(plan)) == plan
    assert ir.loads(ir.dumps(plan, indent=None)) == plan


@many
@given(PLANS)
def test_bytes_are_canonical(plan: ir.Plan) -> None:
    text = ir.dumps(plan)
    assert ir.dumps(ir.loads(text)) == text
    assert text.endswith("}\n")
    keys = list(json.loads(text))
    assert keys == sorted(keys)


def test_types_come_back_as_they_went_in() -> None:
    plan = ir.loads(ir.dumps(sample()))
    role = plan.choice.roles[0]
    assert isinstance(role, ir.Role)
    assert isinstance(role.memory, ir.MemoryPlan)
    assert isinstance(plan.prediction.band["one"], ir.Band)
    assert isinstance(plan.deploy.hf_token_secret, tuple)
    assert plan.deploy.patches == (("a patches", "a patches"),)
    assert type(role.tp) is int
    assert type(role.utilization) is float


def test_absent_optional_values_stay_absent() -> None:
    whole = sample()
    plan = dataclasses.replace(
        whole, deploy=dataclasses.replace(whole.deploy, hf_token_secret=None, network_policy_from=None)
    )
    again = ir.loads(ir.dumps(plan))
    assert again.deploy.hf_token_secret is None
    assert again.deploy.network_policy_from is None


def test_order_of_keys_changes_neither_bytes_nor_hash() -> None:
    one = dataclasses.replace(sample(), slo={"ttft.p95": 0.5, "itl.p95": 0.05})
    two = dataclasses.replace(sample(), slo={"itl.p95": 0.05, "ttft.p95": 0.5})
    assert ir.dumps(one) == ir.dumps(two)
    assert one.content_hash == two.content_hash


def test_last_bits_of_a_float_change_neither_bytes_nor_hash() -> None:
    one = dataclasses.replace(sample(), slo={"itl.p95": 0.1 + 0.2})
    two = dataclasses.replace(sample(), slo={"itl.p95": 0.3})
    assert ir.dumps(one) == ir.dumps(two)
    assert one.content_hash == two.content_hash


def test_hash_is_sixteen_hex_digits_of_the_content() -> None:
    assert len(sample().content_hash) == 16
    assert int(sample().content_hash, 16) >= 0
    assert sample().content_hash == sample().content_hash


def test_every_leaf_counts_in_the_hash_and_survives_loading() -> None:
    plan = sample()
    document = json.loads(ir.dumps(plan))
    seen = 0
    for path, value in leaves(document):
        other: Any
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, str):
            other = value + "!"
        else:
            other = value + 1
        try:
            altered = ir.loads(json.dumps(changed(document, path, other)))
        except ValueError as error:
            assert isinstance(value, str) and "is not one of" in str(error), path  # one of a few words
            continue
        if path == ("made_by",):  # a release that changes nothing must not touch a cluster's objects
            assert altered.content_hash == plan.content_hash and altered.made_by == other
            continue
        assert altered.content_hash != plan.content_hash, path
        seen += 1
    assert seen > 100  # the sample fills every container


def test_not_a_number_is_written_as_null_and_read_as_nan() -> None:
    whole = sample()
    plan = dataclasses.replace(whole, traffic=dataclasses.replace(whole.traffic, rate=math.nan, trough=math.inf))
    text = ir.dumps(plan)
    assert "NaN" not in text
    assert "Infinity" not in text
    again = ir.loads(text)
    assert math.isnan(again.traffic.rate)
    assert ir.dumps(again) == text


@pytest.mark.parametrize("path", [("surprise",), ("choice", "surprise"), ("choice", "roles", 0, "surprise")])
def test_an_unknown_field_is_refused_at_any_depth(path: tuple[Any, ...]) -> None:
    document = changed(json.loads(ir.dumps(sample())), path, 1)
    with pytest.raises(ValueError, match="has no field 'surprise'"):
        ir.loads(json.dumps(document))


@pytest.mark.parametrize("text", ["[]", "{}", "3", "not json", '{"name": "x"}'])
def test_what_is_not_a_plan_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        ir.loads(text)


def test_a_missing_field_is_refused() -> None:
    document = json.loads(ir.dumps(sample()))
    del document["choice"]["devices"]
    with pytest.raises(ValueError, match="choice: the field 'devices' is missing"):
        ir.loads(json.dumps(document))


def roles(**replicas: int) -> tuple[ir.Role, ...]:
    role = dataclasses.replace(sample().choice.roles[0], spares=1, devices=8, grouped=False)
    return tuple(dataclasses.replace(role, role=name, replicas=n) for name, n in replicas.items())


def test_ratio_names_aggregated_and_split_plans() -> None:
    choice = sample().choice
    assert dataclasses.replace(choice, roles=roles(serve=4)).ratio == "4x"
    assert dataclasses.replace(choice, roles=roles(prefill=2, decode=3)).ratio == "2P3D"
    assert dataclasses.replace(choice, roles=(*roles(serve=4), *roles(serve=3))).ratio == "4x+3x"


def test_totals_count_spares() -> None:
    role = roles(serve=4)[0]
    assert role.total_replicas == 5
    assert role.total_devices == 40


def test_role_by_name() -> None:
    whole = sample()
    plan = dataclasses.replace(whole, choice=dataclasses.replace(whole.choice, roles=roles(prefill=2, decode=3)))
    assert plan.role("decode").replicas == 3
    with pytest.raises(KeyError):
        plan.role("serve")


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample().name = "other"
