"""Contracts say what the engines' own parsers accept; each case below was seen with the real parser."""

from __future__ import annotations

import pytest

from servegen.engines.contract import CONTRACTS, contract_name, load_contract, require
from servegen.engines.launch import Arg
from servegen.errors import UserError

SGLANG = "sglang-0.5.23"
MODEL = Arg("--model-path", ("m",))


def codes(name: str, *args: Arg) -> list[str]:
    return [d.code for d in load_contract(name).check(args)]


@pytest.mark.parametrize(
    "arg",
    [
        Arg("--tp-size", ("8",)),
        Arg("--tensor-parallel-size", ("8",)),
        Arg("--chunked-prefill-size", ("-1",)),
        Arg("--max-prefill-tokens", ("16k",)),
        Arg("--mem-fraction-static", ("0.85",)),
        Arg("--kv-cache-dtype", ("fp8_e4m3",)),
        Arg("--enable-metrics"),
        Arg("--cuda-graph-bs-decode", ("1", "2", "4")),
        Arg("--disaggregation-transfer-backend", ("nixl",)),
    ],
    ids=lambda a: a.flag,
)
def test_what_sglang_accepts(arg: Arg) -> None:
    assert codes(SGLANG, MODEL, arg) == []


@pytest.mark.parametrize(
    ("arg", "code", "said"),
    [
        (Arg("--tp-sizes", ("8",)), "flag-unknown", "did you mean --tp-size?"),
        (Arg("--pp", ("2",)), "flag-unknown", "--pp-size"),
        (Arg("--cuda-graph-max-bs", ("64",)), "flag-unknown", "--cuda-graph-max-bs-decode"),
        (Arg("--tp-size=8"), "flag-unknown", "two words"),
        (Arg("--tp-size", ("eight",)), "flag-value", "a whole number"),
        (Arg("--tp-size", ("1.5",)), "flag-value", "a whole number"),
        (Arg("--tp-size"), "flag-value", "one value"),
        (Arg("--tp-size", ("8", "9")), "flag-value", "one value"),
        (Arg("--enable-metrics", ("true",)), "flag-value", "no value"),
        (Arg("--served-model-name", ("--x",)), "flag-value", "as a flag"),
        (Arg("--max-prefill-tokens", ("many",)), "flag-value", "k/M/G"),
        (Arg("--kv-cache-dtype", ("fp8",)), "flag-choice", "fp8_e4m3"),
        (Arg("--quantization", ("int8",)), "flag-choice", "w8a8_int8"),
        (Arg("--cuda-graph-bs-decode"), "flag-value", "at least one"),
    ],
    ids=lambda v: v.flag if isinstance(v, Arg) else None,
)
def test_what_sglang_refuses(arg: Arg, code: str, said: str) -> None:
    (found,) = load_contract(SGLANG).check([MODEL, arg])
    assert (found.code, found.severity) == (code, "error")
    assert said in str(found)


def test_deprecated_is_a_warning() -> None:
    (found,) = load_contract(SGLANG).check([MODEL, Arg("--disable-cuda-graph")])
    assert (found.code, found.severity) == ("flag-deprecated", "warning")
    require(load_contract(SGLANG), (MODEL, Arg("--disable-cuda-graph")), "sglang")


def test_an_alias_repeats_its_flag() -> None:
    args = (MODEL, Arg("--tp-size", ("8",)), Arg("--tensor-parallel-size", ("4",)))
    (found,) = load_contract(SGLANG).check(args)
    assert found.code == "flag-repeated"
    assert "--tensor-parallel-size repeats --tp-size" in found.message
    with pytest.raises(UserError, match="sglang serve: --tensor-parallel-size repeats"):
        require(load_contract(SGLANG), args, "sglang serve")


def test_required_flags() -> None:
    assert codes(SGLANG) == ["flag-missing"]
    assert codes(SGLANG, Arg("--model", ("m",))) == []


def test_router_flags_that_may_repeat() -> None:
    two = (
        Arg("--prefill", ("http://a:1", "8998")),
        Arg("--prefill", ("http://b:1",)),
        Arg("--decode", ("http://c:1",)),
    )
    assert codes("sglang-router-0.3.2", *two) == []
    assert codes("sglang-router-0.3.2", Arg("--decode", ("http://c:1", "8998"))) == ["flag-value"]
    assert codes("sglang-router-0.3.2", Arg("--policy", ("bucket",))) == ["flag-choice"]


def test_megatron_has_the_server_scripts_flags_too() -> None:
    contract = load_contract("megatron-0.19.2")
    assert codes("megatron-0.19.2", Arg("--port", ("5000",)), Arg("--bf16"), Arg("--rotary-base", ("500000",))) == []
    assert codes("megatron-0.19.2", Arg("--rotary-base", ("500000.0",))) == ["flag-value"]
    assert codes("megatron-0.19.2", Arg("--use-te")) == ["flag-unknown"]
    assert len(contract.flags) > 845


def test_versions() -> None:
    assert contract_name("sglang", "0.5.23") == SGLANG
    with pytest.raises(UserError, match=r"sglang 0\.1 accepts\n.*one of 0\.5\.23$"):
        contract_name("sglang", "0.1")
    with pytest.raises(UserError, match="known: megatron"):
        load_contract("../../errors")


@pytest.mark.parametrize("path", sorted(CONTRACTS.glob("*.json")), ids=lambda p: p.stem)
def test_files_are_small_whole_and_name_their_source(path) -> None:  # type: ignore[no-untyped-def]
    assert path.stat().st_size < 60_000
    contract = load_contract(path.stem)
    assert contract.source
    assert contract.version
    for flag in contract.flags.values():
        assert flag.canonical in contract.flags, flag
        assert flag.type in ("str", "int", "float", "size", "json", "bool"), flag
