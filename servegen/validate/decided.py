"""The user's last word against the plan's: what an override decides otherwise, and what it says to nobody."""

from __future__ import annotations

from collections.abc import Iterator

from servegen.engines import decisions
from servegen.engines.contract import load_contract
from servegen.engines.launch import Launch
from servegen.errors import Diagnostic
from servegen.plan import Plan

_ARGS = "deploy.overrides.args"
#: How to see what another value would do.
_PREDICTED = {
    "--chunked-prefill-size": "; servegen estimate --chunk predicts others",
    "--max-running-requests": "; servegen estimate --batch predicts others",
}


def check_decided(plan: Plan, launch: Launch) -> list[Diagnostic]:
    """A warning for each flag of one process that an override sets other than the plan. Code: value-decided."""
    found = []
    for changed in decisions.overridden(plan, launch):
        given = " ".join(changed.given.words()) if changed.given is not None else f"{changed.flag} is removed"
        planned = "leaves it out" if changed.planned is None else f"says {' '.join(changed.planned.values) or 'that it is set'}"
        message = f"{given}: the plan {planned}, for which alone its predictions and its memory hold"
        decides = decisions.governing(changed.flag)
        better = f"spec.{decides} decides it" if decides else f"leave it out{_PREDICTED.get(changed.flag, '')}"
        key = f"spec.{_ARGS}.{_key(plan, launch, changed.flag)}"
        found.append(Diagnostic("value-decided", message, hint=f"{key}; {better}", severity="warning"))
    return found


def _key(plan: Plan, launch: Launch, canonical: str) -> str:
    """How the spec writes a flag: by an alias, perhaps."""
    flags = load_contract(launch.contract).flags
    return next(k for k in sorted(plan.deploy.args) if flags["--" + k.removeprefix("--")].canonical == canonical)


def check_unheard(plan: Plan) -> Iterator[Diagnostic]:
    """A warning for each override of an engine for which nothing is rendered. Code: override-unheard."""
    deploy = plan.deploy
    keys = [*(f"{_ARGS}.{k}" for k in sorted(deploy.args)), *(f"deploy.overrides.env.{k}" for k in sorted(deploy.env))]
    for key in [*keys, *(f"deploy.overrides.patches[{i}]" for i in range(len(deploy.patches)))]:
        message = f"{key}: nothing is rendered for {plan.choice.engine}, so that no process and no object heeds it"
        hint = "the predictions do not, either; leave it out, or take an engine that is rendered (constraints.engines)"
        yield Diagnostic("override-unheard", message, hint=hint, severity="warning")
