"""What an engine makes of a device's memory: its reserve, the fraction that it is told, the KV pool that is left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.catalog.facts import MemoryRule, ModelFacts
from servegen.record import record
from servegen.roofline import memory as mem
from servegen.roofline.speculation import DraftMemory

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


#: Graphs of more sequences than this need half as much padding again (SGLang's reserve_for_graph_mb: 3 MB and 1.5 MB).
LARGE_GRAPH = 300
LARGE_GRAPH_PADDING = 1.5


@record
class Budget:
    """Bytes on one device, of every (row, batch limit), shape (rows, limits).

    ``fraction`` is the engine's flag, ``pool`` what it leaves for KV; ``fits`` where that is more than nothing.
    """

    fraction: Array
    pool: Array
    fits: Mask


def budget(
    rule: MemoryRule,
    model: ModelFacts,
    usable: Array,
    weights: Array,
    chunk: Array,
    tp: Array,
    limits: Array,
    handoff: bool = False,
    devices: Array | None = None,
    groups: Array | None = None,
    draft: DraftMemory | None = None,
) -> Budget:
    """Memory of rows (``usable`` to ``tp``, shape (rows,)) at ``limits`` (limits,) sequences of a replica (F19, F19b).

    ``devices`` of a replica where they are not ``tp``, and attention ``groups`` where there are any, shape (rows,).

    The reserve is the engine's own rule, or the working activations where those are more.
    ``handoff`` adds the staging buffers of a prefill or decode server. A ``draft`` and its KV lie beside what the fraction
    counts; the pool that is returned holds the KV of both models.
    """
    devices = tp if devices is None else devices
    groups = np.ones_like(tp) if groups is None else groups
    usable, weights, chunk, tp, devices, groups = (c[:, None] for c in (usable, weights, chunk, tp, devices, groups))
    mine = limits[None, :] / groups  # each group has its own slots, and its share of a step's tokens
    widest = max(max(g.intermediate, g.moe_intermediate * max(g.experts_per_token, 1)) for g in model.layers)
    rows = limits if draft is None else limits * draft.queries[:, None]
    working = mem.activation_bytes(chunk, model.hidden_size, widest, tp) + mem.logits_bytes(rows, model.vocab_size, tp)
    graphs = graph_bytes(rule, mine, groups)
    if draft is not None:  # the draft's steps are captured as well
        graphs = graphs * np.where(draft.queries > 1.0, 2.0, 1.0)[:, None]
    by_rule = (
        rule.context_bytes
        + rule.usable_share * usable
        + rule.per_chunk_token_bytes * np.maximum(chunk, rule.least_chunk_tokens)
        + rule.per_device_bytes * devices
        + graphs
    )
    # A floor for large devices, faded in below their size: more memory must never leave a smaller pool.
    floor = np.clip(usable - (rule.floor_above_bytes - rule.floor_bytes), 0.0, rule.floor_bytes)
    reserve = np.maximum(np.maximum(by_rule, floor), working + graphs) + (rule.handoff_bytes if handoff else 0.0)
    # The engine applies its fraction to what is free once the process and its communicator are up; what a process takes
    # at the least must stay free whatever the rule says.
    setup = np.where(devices > 1, rule.setup_parallel_bytes, rule.setup_bytes)
    beside = 0.0 if draft is None else draft.weight_bytes[:, None]
    fits_process = (usable - mem.runtime_bytes(weights + beside)) / (usable - setup)
    share = np.minimum((usable - reserve) / usable, fits_process)
    if draft is None:
        fraction = mem.static_fraction(share)
        pool = mem.pool_bytes(usable - setup, fraction, weights)
    else:
        drafts = draft.kv_share[:, None]
        free = np.maximum(mem.pool_bytes(usable - setup, share, weights + beside), 0.0)
        fraction = mem.static_fraction(share - (beside + free * drafts) / (usable - setup))
        pool = mem.pool_bytes(usable - setup, fraction, weights) / (1.0 - drafts)
    return Budget(fraction, pool, pool > 0)


def graph_bytes(rule: MemoryRule, sequences: Array, groups: Array) -> Array:
    """Reserve for graphs of up to ``sequences`` sequences of one group; padding to the other ``groups`` comes on top."""
    if not (groups > 1).any():
        return np.asarray(rule.per_graph_sequence_bytes * sequences)
    padding = np.where(groups > 1, rule.per_padded_sequence_bytes * sequences * groups, 0.0)
    large = np.where(sequences > LARGE_GRAPH, LARGE_GRAPH_PADDING, 1.0)
    return np.asarray(rule.per_graph_sequence_bytes * sequences + padding * large)
