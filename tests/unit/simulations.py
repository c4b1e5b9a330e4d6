"""Replays for tests: step models whose every figure is chosen, and a replay that goes step by step to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from servegen.simulate.deployment import Deployment, Pool
from servegen.simulate.engine import Limits
from servegen.simulate.requests import Open
from servegen.simulate.steps import StepModel

EVERYTHING = 1 << 40


def make_model(**changes: Any) -> StepModel:
    """A step that costs nothing but what a test sets; one byte of KV per token."""
    zero = {
        name: 0.0
        for name in (
            "fixed_s", "prompt_s",
            "sequence_s", "decode_s", "wire_s", "weight_s", "expert_s", "expert_idle", "flop_s", "read_s", "pair_s",
            "sequence_bytes",
        )
    }  # fmt: skip
    return StepModel(**{**zero, "token_bytes": 1.0, **changes})


def make_pool(model: StepModel, scheduler: str = "prefill-first", count: int = 1, **limits: Any) -> Pool:
    """A pool without limits but those that a test sets."""
    block = limits.pop("block_tokens", 0)
    given = {"max_running": EVERYTHING, "chunk": EVERYTHING, "pool_bytes": 1e15, "reserve_share": 0.0, **limits}
    return Pool(model, Limits(**given), scheduler, count, 0.0, block)


def one(pool: Pool) -> Deployment:
    return Deployment((pool,))


def send(at: Sequence[float], isl: Sequence[int], osl: Sequence[int], **more: Any) -> Open:
    """Requests as plain lists."""
    return Open(np.array(at, float), np.array(isl, np.int64), np.array(osl, np.int64), **more)


def plainly(
    model: StepModel, scheduler: str, chunk: int, slots: int, at: Sequence[float], isl: Sequence[int], osl: Sequence[int]
) -> tuple[list[float], list[float]]:
    """First and last tokens of every request, one step after the other, with an unlimited KV pool and no window."""
    n = len(at)
    first, last = [math.nan] * n, [math.nan] * n
    todo, left = list(isl), list(osl)
    waiting: list[int] = []
    running: list[int] = []
    batch: list[int] = []  # of the static engine: running, and ended but not yet released
    computing: list[int] = []  # admitted, prompt not finished
    now, sent = 0.0, 0
    while any(math.isnan(t) for t in last):
        while sent < n and at[sent] <= now:
            waiting.append(sent)
            sent += 1
        decodes = list(running) if scheduler in ("mixed", "whole") else []
        room = {"static": EVERYTHING if not batch else 0, "prefill-first": chunk}.get(scheduler, chunk - len(running))
        parts: list[tuple[int, int]] = []
        for r in list(computing):
            if room > 0:
                parts.append((r, min(todo[r], room)))
                room -= parts[-1][1]
        while waiting and room > 0 and len(running) + len(computing) < slots:
            r = waiting[0]
            if scheduler == "whole" and todo[r] > room and (parts or todo[r] <= chunk):
                break
            computing.append(waiting.pop(0))
            parts.append((r, todo[r] if scheduler == "whole" else min(todo[r], room)))
            room -= parts[-1][1]
        if not parts:
            decodes = list(running)
            if not decodes:
                now = at[sent]
                continue
        places = batch if scheduler == "static" and decodes else decodes
        tokens = sum(p for _, p in parts)
        ending = sum(p == todo[r] for r, p in parts)
        seconds = model.fixed_s + model.decode_s * len(places) + model.sequence_s * ending + model.wire_s * tokens
        seconds += model.gemm_s(len(places) + tokens)
        seconds += sum(model.attention_s(isl[r] - todo[r], p) for r, p in parts)
        longest = {r: isl[r] + osl[r] - left[r] for r in places}
        if scheduler == "static" and places:  # ended sequences go on growing beside the others
            grown = max(osl[r] - left[r] for r in running)
            longest = {r: isl[r] + grown for r in places}
        seconds += model.read_s * sum(longest.values())
        now += max(seconds, model.prompt_s) if parts else seconds
        for r in decodes:
            left[r] -= 1
            if not left[r]:
                last[r] = now
                running.remove(r)
        for r, p in parts:
            todo[r] -= p
            if not todo[r]:
                computing.remove(r)
                first[r] = now
                left[r] -= 1
                if left[r]:
                    running.append(r)
                    batch.append(r)
                else:
                    last[r] = now
        if not running:
            batch.clear()
    return first, last
