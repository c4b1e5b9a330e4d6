"""Specs as text and as problems, for tests that put many questions to the solver."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import servegen.solve
from servegen.solve.problem import Problem
from servegen.solve.resolve import resolve
from servegen.spec.load import loads

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LENGTHS = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"
CHAT = f"{{rate: 6/s, {LENGTHS}}}"
NODE = "[{accelerator: h100, nodes: 1, perNode: 8}]"
FABRIC = "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"


def spec_text(
    *,
    model: str = LLAMA_70B,
    more_model: str = "",
    slo: str = "{}",
    traffic: str = CHAT,
    pool: str = FABRIC,
    objective: str = "cost",
    constraints: str = "{}",
    deploy: str = "{}",
) -> str:
    """A spec; every argument is YAML in flow style."""
    return f"""apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: asked}}
spec:
  model: {{name: {model}{more_model}}}
  slo: {slo}
  traffic: {traffic}
  hardware: {{pool: {pool}}}
  objective: {objective}
  constraints: {constraints}
  deploy: {deploy}
"""


def problem_of(text: str, filename: str = "asked.yaml") -> Problem:
    """The problem that a spec's text states."""
    return resolve(loads(text, filename)[0])


def problem(**stated: str) -> Problem:
    """The problem of :func:`spec_text` with these arguments."""
    return problem_of(spec_text(**stated))


def scheduling(asked: Problem, scheduler: str) -> Problem:
    """The same problem, whose engines can schedule in no other way."""
    only = [dataclasses.replace(e, facts=dataclasses.replace(e.facts, schedulers=(scheduler,))) for e in asked.engines]
    return dataclasses.replace(asked, engines=tuple(only))


@contextlib.contextmanager
def reduced(limits: Sequence[int], chunks: Sequence[int]) -> Iterator[None]:
    """The search over these batch limits and chunks only, in every module that knows them; every other limit is computed first,
    as it is of many."""
    small: dict[str, Any] = {"BATCH_LIMITS": np.array(limits, dtype=np.float64), "CHUNKS": tuple(chunks), "LARGE": 0, "STRIDE": 2}
    with contextlib.ExitStack() as stack:
        for found in pkgutil.iter_modules(servegen.solve.__path__):
            module = importlib.import_module(f"servegen.solve.{found.name}")
            for key, value in small.items():
                if hasattr(module, key):
                    stack.callback(setattr, module, key, getattr(module, key))
                    setattr(module, key, value)
        yield
