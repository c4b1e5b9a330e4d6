"""The scalar step model against the columns that it is taken from."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import list_models, resolve_model
from servegen.lower import Config, Lowered, lower
from servegen.simulate.steps import StepModel


def lowered(model: str, tp: int = 2) -> Lowered:
    config = Config(resolve_accelerator("h200-sxm-141gb"), "fp8", "fp8", tp)
    return lower(resolve_model(model), resolve_engine("sglang"), [config])


def scalar(found: Lowered, page_tokens: int = 1) -> StepModel:
    memory = found.memory
    return StepModel.of(found.terms, 0, memory.kv_bytes[0].tolist(), float(memory.state_bytes[0]), page_tokens)


@pytest.mark.parametrize("name", list_models())
def test_every_step_costs_the_same_in_both(name: str) -> None:
    found = lowered(name)
    step, terms = scalar(found), found.terms
    for sequences, context in ((1, 10), (7, 900), (256, 5000)):
        read = step.read_s * context + sum(w.read_s * min(context, w.tokens) for w in step.windows)
        columns = terms.decode_s(np.array([float(sequences)]), terms.kv_s(float(context)))
        assert step.batch_s(sequences) + sequences * read == pytest.approx(float(columns[0]), rel=1e-12)
    for past, tokens in ((0, 1), (0, 3000), (2000, 512)):
        total = np.array([float(past + tokens)])
        assert step.attention_s(past, tokens) == pytest.approx(float(terms.attention_s(total, total - tokens)[0, 0]), rel=1e-9)
        chunk = step.fixed_s + step.gemm_s(tokens) + step.wire_s * tokens
        assert chunk == pytest.approx(float(terms.chunk_s(np.array([float(tokens)]))[0]), rel=1e-12)
    for context in (1, 700, 40_000):
        assert step.held_bytes(context) == pytest.approx(float(found.memory.sequence_bytes(float(context))[0]), rel=1e-12)


def test_figures_are_plain_floats() -> None:
    step, counts = scalar(lowered("Llama-3.1-8B")), ("windows", "stages", "groups", "drafting")
    assert all(type(getattr(step, name)) is float for name in StepModel.__slots__ if name not in counts)


def test_pages_are_rounded_up() -> None:
    found = lowered("Llama-3.1-8B")
    exact, paged = scalar(found), scalar(found, 16)
    token = exact.token_bytes
    for context in (1, 15, 16, 17, 1000):
        pages = -(-context // 16) * 16 * token
        assert exact.held_bytes(context) <= pages <= paged.held_bytes(context) <= pages + 15 * token
