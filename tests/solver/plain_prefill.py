"""A prefill server of a split at a share of busy time, as plain arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.solver.plain_bulk import per_step
from tests.solver.plain_seen import Seen
from tests.solver.plain_wait import Work, first_token, wait

if TYPE_CHECKING:
    from tests.solver.plain_replica import Replica

SLOTS = 64.0


def prefilling(replica: Replica, busy: float) -> Seen:
    """What clients see of the server's part; all who wait are in the next step, as far as that holds them."""
    load = replica.load
    most = max(replica.chunk / load.new_mean, replica.step.groups)
    prompts, others = per_step(busy, load.queue_cv2)
    strangers = per_step(busy, 1.0)[1]
    prompts = min(prompts, most)
    each = replica.prefill * replica.gain(prompts)
    rate = busy / each
    more = replica.added(each, prompts, max(others / max(1 - busy, 1e-6), 1.0))
    number = 1 + min(others, strangers)
    shared = min((prompts * each + (number - prompts) * more) / (number * replica.prefill), 1.0)
    cv2 = replica.cv2 / shared**2
    third = 1 + 3 * cv2 + (replica.third - 1 - 3 * replica.cv2) / shared**3
    w = Work(each, more, prompts, cv2, third, replica.left)
    delayed, waits = wait(w, busy, 0.0, load, SLOTS)
    inside = others * (1 - (others / (1 + others)) ** (most - 1))
    behind = max(inside - strangers, 0.0) / 2
    rest, chance, longer, wait_cv2 = first_token(w, load, rate, busy, 0.0, (delayed, waits), behind)
    step = 2 * delayed * waits / (1 + rate * more)  # as those see it who come in one
    handed = replica.later_mean * min(rate * step, most - 1) / 2
    return Seen(
        rate=rate,
        start=replica.request,
        rest=rest,
        delayed=chance,
        wait=longer + handed / max(chance, 1e-12),
        wait_cv2=wait_cv2,
        service=[a + b for a, b in zip(replica.edges, replica.later, strict=True)],
        service_mean=replica.prefill + replica.later_mean,
        gap=0.0,
        gap_spread=(0.0, 0.0),
        stalled=0.0,
        stalls=[],
        longest=0.0,
        gap_mean=0.0,
    )
