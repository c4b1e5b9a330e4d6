"""Which flags of a command are decisions of the plan, and which of them an override has changed.

Every planned flag is one, but for those that only say where a server listens and how it is watched; the predictions, and the
memory that the plan gives to weights and KV cache, hold for the planned value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from servegen.engines.contract import load_contract
from servegen.engines.launch import Arg, Launch
from servegen.engines.registry import get_engine
from servegen.plan import Plan
from servegen.record import record

#: What no prediction rests on.
WIRING = frozenset(
    ("--ckpt-format", "--disaggregation-bootstrap-port", "--disaggregation-transfer-backend", "--dist-timeout",
     "--enable-metrics", "--host", "--port", "--schedule-policy", "--served-model-name", "--tokenizer-model",
     "--tokenizer-type", "--trust-remote-code")
)  # fmt: skip
#: What a plan also decides by leaving it out, by engine.
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "sglang": (
        "--attn-dp-size", "--chunked-prefill-size", "--cpu-offload-gb", "--disable-cuda-graph", "--disable-radix-cache",
        "--dp-size", "--enable-dp-attention", "--enable-mixed-chunk", "--ep-size", "--max-prefill-tokens", "--max-total-tokens",
        "--pp-size", "--quantization", "--speculative-algorithm",
    ),
    "megatron": ("--fp16", "--fp8-format", "--num-experts", "--pipeline-model-parallel-size", "--qk-layernorm"),
}  # fmt: skip
#: The spec key that decides a flag; the search decides the others, within every bound of the spec.
_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("--model-path", "--load"), "model.name"),
    **dict.fromkeys(("--quantization", "--dtype"), "constraints.weights"),
    **dict.fromkeys(("--bf16", "--fp16", "--fp8-format", "--transformer-impl"), "constraints.weights"),
    "--kv-cache-dtype": "constraints.kvCache",
    **dict.fromkeys(("--tp-size", "--tensor-model-parallel-size"), "constraints.tp"),
    **dict.fromkeys(("--pp-size", "--pipeline-model-parallel-size"), "constraints.pp"),
    "--ep-size": "constraints.ep",
    **dict.fromkeys(("--attn-dp-size", "--dp-size", "--enable-dp-attention"), "constraints.dp"),
    **dict.fromkeys(("--context-length", "--inference-max-seq-length", "--seq-length"), "model.contextLength"),
    "--disaggregation-mode": "constraints.topology",
    "--disable-radix-cache": "traffic.prefix",
}  # fmt: skip
_SPECULATIVE = "--speculative-"
#: Values of ``--dtype`` between which nothing changes: what nearly every checkpoint says of itself, and as large in any case.
_BFLOAT16 = frozenset({"auto", "bfloat16"})
#: What leaving a flag out says, too, where the plan does.
_NEUTRAL = {**dict.fromkeys(("--attn-dp-size", "--dp-size", "--ep-size", "--pp-size"), ("1",)), "--cpu-offload-gb": ("0",),
            "--pipeline-model-parallel-size": ("1",)}  # fmt: skip


@record
class Overridden:
    """One decision that an override changed: its flag as given and as planned (None: removed, or left out by the plan)."""

    flag: str
    given: Arg | None
    planned: Arg | None


def governing(flag: str) -> str:
    """The spec key that decides ``flag``, "" where the search does."""
    return "model.speculative" if flag.startswith(_SPECULATIVE) else _KEYS.get(flag, "")


def overridden(plan: Plan, launch: Launch) -> Iterator[Overridden]:
    """The decisions that ``deploy.overrides.args`` changed in one of the launches of ``plan``."""
    if not plan.deploy.args or launch.role is None:
        return
    contract = load_contract(launch.contract).flags
    unchanged = get_engine(plan.choice.engine).launches(replace(plan, deploy=replace(plan.deploy, args={})))
    before = next(x for x in unchanged if x.name == launch.name)
    given, planned = ({contract[a.flag].canonical: a for a in x.args} for x in (launch, before))
    decided = {*planned, *LEFT_OUT[plan.choice.engine]} - WIRING
    for flag in [*planned, *(f for f in given if f not in planned)]:
        if flag == "--disable-radix-cache" and plan.traffic.prefix_hit == 0:
            continue
        have, due = given.get(flag), planned.get(flag)
        neutral = due is None and have is not None and have.values == _NEUTRAL.get(flag)
        if flag in decided and not neutral and not _same(have, due):
            yield Overridden(flag, have, due)


def _same(given: Arg | None, planned: Arg | None) -> bool:
    if given is None or planned is None:
        return given is planned
    if given.flag == "--dtype" and {*given.values, *planned.values} <= _BFLOAT16:
        return True
    return tuple(map(_number, given.values)) == tuple(map(_number, planned.values))


def _number(word: str) -> float | str:
    """``0.9`` and ``0.90`` are the same."""
    try:
        return float(word)
    except ValueError:
        return word
