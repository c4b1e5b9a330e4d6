"""``servegen simulate``: replay requests through a plan; how the latencies come out, and whether the SLO holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegen.cli.common import format_of, one_of, put_data, read_lock, read_specs, show, solving
from servegen.errors import Diagnostic, SpecError, Where

if TYPE_CHECKING:
    from servegen.plan import Plan
    from servegen.solve.arrivals import Sent
    from servegen.solve.replay import Loss, Subject

ARRIVALS = ("poisson", "gamma", "closed-loop")
ROUTERS = ("round-robin", "random", "power-of-two", "cache-aware")
NOT_MET = 3
#: Of one replay: every request stands in memory.
MOST_REQUESTS = 10**7


def simulate(
    path: Annotated[str, typer.Argument(metavar="SPEC|LOCK", help="A spec, which is solved first, or a plan.lock.json.")],
    trace: Annotated[str, typer.Option(help="Replay this recorded trace (Azure, Mooncake or plain; CSV or JSON lines).")] = "",
    arrivals: Annotated[str, typer.Option(help="poisson, gamma or closed-loop; default: the spec's traffic.")] = "",
    requests: Annotated[int, typer.Option(min=0, max=MOST_REQUESTS, help="Requests; 0: 10,000 or more, or a whole trace.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    speedup: Annotated[float, typer.Option(help="Replay the trace so many times as fast.")] = 1.0,
    window: Annotated[str, typer.Option(help="Replay only A:B of the trace, in seconds or as 10min:20min.")] = "",
    router: Annotated[str, typer.Option(help="random, round-robin, power-of-two or cache-aware; default: as deployed.")] = "",
    fail_replica: Annotated[str, typer.Option(help="Lose a replica at this time, as 300 (seconds) or 5min.")] = "",
    format: Annotated[str, typer.Option("--format", "-o", help="text, json or yaml.")] = "text",
) -> int:
    """Replay requests through the plan; exit 3 if a bound is missed."""
    format_of(format, ("text", "json", "yaml"))
    if router:
        one_of("--router", router, ROUTERS)
    if arrivals:
        one_of("--arrivals", arrivals, ARRIVALS)
    if trace and arrivals:
        raise typer.BadParameter("a trace has arrivals of its own", param_hint="'--arrivals'")
    if not (math.isfinite(speedup) and speedup > 0.0):
        raise typer.BadParameter(f"{speedup:g} is not above 0", param_hint="'--speedup'")
    begin, end = _window(window)
    fail_s = _time("--fail-replica", fail_replica) if fail_replica else math.inf
    from servegen.report.replay import Scene, replay_blocks, replay_json
    from servegen.simulate.arrivals import Cut
    from servegen.solve.arrivals import Traffic
    from servegen.solve.replay import deployed_policy, run, verdicts
    from servegen.solve.replay import requests as sent
    from servegen.workload import trace_requests

    subject = _subject(path)
    for flag, cuts in (("--speedup", speedup != 1.0), ("--window", bool(window))):
        if cuts and not trace and (arrivals or subject.trace is None):
            raise typer.BadParameter("only a trace can be cut: name one with --trace", param_hint=f"'{flag}'")
    recorded = trace_requests(trace) if trace else None
    kind: Any = arrivals
    traffic = Traffic(kind, requests, seed, recorded, trace, Cut(begin, end, speedup))
    policy = router or deployed_policy(subject.plan)
    played, judged = [], []
    for name, loss, decides in _scenes(subject.plan, fail_s):
        given = sent(subject, traffic)
        with _bar(name, given) as told:
            result = run(subject, given, seed, policy, loss, told)
        played.append(Scene(name, result, verdicts(subject, result)))
        if decides:
            judged.append(played[-1])
    if format == "text":
        show(replay_blocks(subject.plan, played, given.words, policy))
    else:
        put_data([replay_json(subject.plan, played, given.kind, given.words, policy)], True, format)
    return 0 if all(scene.met for scene in judged) else NOT_MET


def _scenes(plan: Plan, fail_s: float) -> Iterator[tuple[str, Loss | None, bool]]:
    """What is played: a name, the loss, and whether the exit code depends on it, as the plan has spares or has none."""
    from servegen.solve.replay import Loss

    lossless = fail_s == math.inf
    yield "as planned", None, lossless
    if lossless:
        return
    for index, role in enumerate(plan.choice.roles):
        who = "a replica" if role.role == "serve" else f"a {role.role} server"
        who += f" of {role.name}" if role.grouped else ""
        yield f"{who} lost, with a spare", Loss(fail_s, index, max(role.spares, 1)), bool(role.spares)
        yield f"{who} lost, no spare", Loss(fail_s, index, 0), not role.spares


def _bar(name: str, given: Sent) -> Any:
    from servegen.report.progress import progress

    return progress(name, given.source.count)


def _subject(path: str) -> Subject:
    """The plan of a lock as it is, or of a spec that is solved now."""
    from servegen.solve.replay import of_lock, of_problem

    if path.endswith(".json"):
        plan = read_lock(path)
        try:
            return of_lock(plan)
        # Anybody may have edited the spec that a lock carries, or the choice that its accelerators must know.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = f"this lock contradicts itself: {type(error).__name__}: {error}"
            raise SpecError(Diagnostic("bad-lock", message, Where(path), "servegen build writes plan.lock.json")) from error
    from servegen.compile import compile_spec
    from servegen.spec.load import LoadedSpec

    sources = read_specs([path])
    if len(sources) != 1:
        names = ", ".join(source.name for source in sources)
        raise SpecError(Diagnostic("one-spec", f"a replay takes one spec, here are {len(sources)}: {names}", Where(path)))
    loaded = sources[0].need()
    if not isinstance(loaded, LoadedSpec):
        hint = f"servegen build writes a lock for each member: out/{loaded.name}/MEMBER/plan.lock.json"
        raise SpecError(Diagnostic("one-spec", "a replay takes one spec, and this is a fleet", Where(path), hint))
    with solving(loaded):
        solved = compile_spec(loaded, until="plan")
    if solved.problem is None or solved.plan is None:
        raise ValueError("the stage 'plan' made no plan")
    return of_problem(solved.problem, solved.plan)


def _window(text: str) -> tuple[float, float]:
    """``A:B``, either end may be left out."""
    if not text:
        return 0.0, math.inf
    first, colon, last = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{text!r} is not A:B", param_hint="'--window'")
    begin = _time("--window", first) if first else 0.0
    end = _time("--window", last) if last else math.inf
    if end <= begin:
        raise typer.BadParameter(f"{text!r} ends before it begins", param_hint="'--window'")
    return begin, end


def _time(flag: str, text: str) -> float:
    """Seconds, as a bare number or with a unit."""
    from servegen.units import parse_duration

    try:
        value = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{flag}'") from error
    return value
