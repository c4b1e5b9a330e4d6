"""Speculative decoding as an axis of the search: how many tokens are drafted ahead, and what a draft adds to physics and memory.

The draft is a model like any other, so it is lowered like one; this module joins it to its target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.lower import Config, Lowered, MemoryTerms, Physics, attention_s, lower
from servegen.record import record
from servegen.roofline.speculation import DraftMemory, Rounds, yield_moments
from servegen.roofline.step import Array, StepTerms, take

#: What tells configurations apart before anything is drafted.
_LOWERED = tuple(f.name for f in dataclasses.fields(Config) if f.name != "drafted")
#: Numbers of drafted tokens that are tried besides none and the stated most; beyond eight each one changes little.
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)


@record
class Speculation:
    """What the spec allows: at most ``steps`` tokens drafted ahead, each accepted with chance ``acceptance``.

    ``draft`` is None where nothing is loaded that computes (n-grams); ``load`` what the engine is told to load for it, "" where
    the target's own checkpoint brings it. ``assumed`` says what was taken as usual because the spec does not state it,
    ``without`` numbers of drafted tokens that an explanation leaves out to see what comes next.
    """

    method: str
    draft: ModelFacts | None
    load: str
    steps: int
    acceptance: float
    assumed: str = ""
    without: tuple[int, ...] = ()


def depths(speculation: Speculation | None) -> tuple[int, ...]:
    """Numbers of drafted tokens that are tried, none first."""
    if speculation is None:
        return (0,)
    tried = (0, *sorted({d for d in DEPTHS if d < speculation.steps} | {speculation.steps}))
    return tuple(d for d in tried if d not in speculation.without)


def refusal(
    speculation: Speculation | None, engine: EngineFacts, accelerator: AcceleratorFacts, drafted: int, pp: int, dp: int
) -> str:
    """Why an engine cannot draft so many tokens on a device, "" if it can."""
    if speculation is None or not drafted:
        return ""
    method = speculation.method
    if method not in engine.drafts:
        return f"speculation: {engine.id} with {method} is not predicted"
    if pp > 1:
        return f"speculation: {engine.id} does not draft over pipeline stages"
    if dp > 1 and method not in engine.drafting_groups:
        return f"speculation: {engine.id} does not draft with {method} in attention groups"
    draft = speculation.draft
    if draft is not None and draft.native_precision not in accelerator.gemm:
        return f"dtype: {accelerator.id} cannot serve a draft of {draft.native_precision} weights"
    return ""


def lower_drafting(
    model: ModelFacts,
    engine: EngineFacts,
    configs: Sequence[Config],
    speculation: Speculation | None,
    physics: Physics = "calibrated",
) -> Lowered:
    """As :func:`servegen.lower.lower`; with ``speculation`` every row's decode step is a round (F49)."""
    if speculation is None or not configs:
        return lower(model, engine, configs, physics)
    plain = _lower_once(model, engine, configs, physics)
    drafted = np.array([float(c.drafted) for c in configs])
    on = np.where(drafted > 0, 1.0, 0.0)
    draft = _draft(speculation, engine, configs, physics)
    terms, memory = draft.terms, draft.memory
    step = 0.0 if physics == "ideal" else engine.step_s.value
    host = on * (engine.sequence_s.value if speculation.draft is None and physics != "ideal" else 0.0)
    # A draft's pass costs its layers' launches; the engine's own launch of a step is paid once more for all of them.
    layers = (terms.launch_s - step if speculation.draft is not None else terms.launch_s) + terms.latency_s
    launch = on * step if speculation.draft is not None else np.zeros_like(on)
    alone = np.array([float(_alone(speculation.draft, c)) for c in configs])
    wire = 2.0 * drafted * terms.token_wire_s  # the passes see g - 1 tokens one by one, and g + 1 together
    acceptance = np.full_like(drafted, speculation.acceptance)
    tokens, square = yield_moments(drafted, acceptance)
    rounds = Rounds(
        drafted=drafted,
        acceptance=acceptance,
        tokens=tokens,
        tokens_square=square,
        launch_s=launch + drafted * layers,
        sequence_s=host + alone * wire,
        wire_s=(1.0 - alone) * wire,
        state_s=plain.terms.state_s * (1.0 + drafted / 2.0) + drafted * terms.state_s,  # read once, written after each token
        chunk_launch_s=launch + on * layers,
        chunk_wire_s=on * terms.token_wire_s,  # of the tokens of all groups, which is the most where each drafts alone
        token_read_s=np.hstack([_verifying(model, engine, configs, plain.terms, physics), drafted[:, None] * terms.token_read_s]),
        pair_s=np.hstack([plain.terms.pair_s, on[:, None] * terms.pair_s]),
        window=np.concatenate([plain.terms.window, terms.window]),
        draft=dataclasses.replace(
            terms,
            weight_s=on * terms.weight_s,
            expert_s=on * terms.expert_s,
            token_flop_s=on * (1.0 - alone) * terms.token_flop_s,
            group_flop_s=on * (terms.group_flop_s + alone * terms.token_flop_s),
        ),
    )
    return dataclasses.replace(
        plain,
        terms=dataclasses.replace(plain.terms, rounds=rounds),
        memory=_memory(plain.memory, memory, drafted, engine.drafts.get(speculation.method, 0.0)),
    )


def _lower_once(model: ModelFacts, engine: EngineFacts, configs: Sequence[Config], physics: Physics) -> Lowered:
    """As :func:`servegen.lower.lower`, which ignores what is drafted: those that differ in nothing else are lowered once."""
    places: dict[tuple[Any, ...], int] = {}
    distinct: list[Config] = []
    index = []
    for c in configs:
        key = tuple(c.accelerator.id if name == "accelerator" else getattr(c, name) for name in _LOWERED)
        if key not in places:
            places[key] = len(distinct)
            distinct.append(c)
        index.append(places[key])
    once, rows = lower(model, engine, distinct, physics), np.array(index)
    return Lowered(tuple(configs), take(once.terms, rows), take(once.memory, rows))


def _alone(draft: ModelFacts | None, config: Config) -> bool:
    """Whether each attention group drafts for itself: a draft without experts has all of its matrices in every group, as
    SGLang's draft worker has them (it patches the TP group with that of the attention)."""
    return draft is not None and config.dp > 1 and not any(g.num_experts for g in draft.layers)


def _draft(speculation: Speculation, engine: EngineFacts, configs: Sequence[Config], physics: Physics) -> Lowered:
    """The draft on each row's devices, whether the row drafts or not; nothing at all where there is no model."""
    draft = speculation.draft
    if draft is not None:
        own = draft.native_precision
        rows = []
        for c in configs:
            weights = own if own in c.accelerator.gemm else c.weights
            tp, dp = (c.attention_tp, 1) if _alone(draft, c) else (c.tp, c.dp)
            ep = c.ep if draft.layers[0].num_experts else 1
            rows.append(dataclasses.replace(c, weights=weights, tp=tp, pp=1, dp=dp, ep=ep))
        return _lower_once(draft, engine, rows, physics)
    zero, one, none = np.zeros(len(configs)), np.ones(len(configs)), np.zeros((len(configs), 0))
    columns: dict[str, Any] = {f.name: zero for f in dataclasses.fields(StepTerms) if f.name != "rounds"}
    special = {"token_read_s": none, "pair_s": none, "stages": one, "groups": one, "window": np.zeros(0)}
    terms = StepTerms(**{**columns, **special})
    return Lowered(tuple(configs), terms, MemoryTerms(zero, zero, none, zero, np.zeros(0)))


def _verifying(model: ModelFacts, engine: EngineFacts, configs: Sequence[Config], plain: StepTerms, physics: Physics) -> Array:
    """Seconds that the verification of a sequence spends on one cached token, (rows, groups).

    Its queries share one reading. They are to the cache as so many more heads, whose work may outlast the reading.
    """
    read = plain.token_read_s.copy()
    for drafted in sorted({c.drafted for c in configs} - {0}):
        layers = tuple(
            dataclasses.replace(g, attention=dataclasses.replace(g.attention, num_heads=g.attention.num_heads * (drafted + 1)))
            for g in model.layers
        )
        wide = dataclasses.replace(model, layers=layers)
        for i, c in enumerate(configs):
            if c.drafted == drafted:
                reads, pairs = (np.array(s) for s in attention_s(wide, engine, c, physics))
                read[i] = np.maximum(reads, 2.0 * pairs)
    return read


def _memory(target: MemoryTerms, draft: MemoryTerms, drafted: Array, reserve_bytes: float) -> MemoryTerms:
    """Memory of both. A recurrent state is kept for every verified token until it is known which are accepted."""
    on = np.where(drafted > 0, 1.0, 0.0)
    kv = np.hstack([target.kv_bytes, on[:, None] * draft.kv_bytes])
    whole = kv.sum(axis=1)
    share = 1.0 - target.token_bytes / np.where(whole > 0, whole, 1.0)
    return dataclasses.replace(
        target,
        kv_bytes=kv,
        state_bytes=target.state_bytes * (1.0 + on * (drafted + 1.0)) + on * draft.state_bytes,
        window=np.concatenate([target.window, draft.window]),
        draft=DraftMemory(
            weight_bytes=on * np.maximum(draft.weight_bytes, reserve_bytes),
            kv_share=np.where(whole > 0, share, 0.0),
            queries=1.0 + drafted,
        ),
    )
