"""``servegen simulate``: replay requests through a plan; how the latencies come out, and whether the SLO holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegen.cli.common import format_of, one_of, put_data, read_specs, show
from servegen.errors import Diagnostic, SpecError, UserError, Where

if TYPE_CHECKING:
    from servegen.solve.replay import Subject, Traffic

ARRIVALS = ("poisson", "gamma", "closed-loop")
ROUTERS = ("round-robin", "power-of-two", "cache-aware")
NOT_MET = 3


def simulate(
    path: Annotated[str, typer.Argument(metavar="SPEC|LOCK", help="A spec, which is solved first, or a plan.lock.json.")],
    trace: Annotated[str, typer.Option(help="Replay a recorded trace (Azure, Mooncake or plain; CSV or JSON lines).")] = "",
    arrivals: Annotated[str, typer.Option(help="poisson, gamma or closed-loop; default: the spec's traffic.")] = "",
    requests: Annotated[int, typer.Option(min=0, help="Requests to send; 0: 10,000, or all of the trace.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    speedup: Annotated[float, typer.Option(help="Replay the trace so many times as fast.")] = 1.0,
    window: Annotated[str, typer.Option(help="Replay only A:B of the trace, in seconds or as 10min:20min.")] = "",
    router: Annotated[str, typer.Option(help="round-robin, power-of-two or cache-aware.")] = "round-robin",
    fail_replica: Annotated[str, typer.Option(help="Lose a replica at this time, as 300 (seconds) or 5min.")] = "",
    format: Annotated[str, typer.Option("--format", "-o", help="text, json or yaml.")] = "text",
) -> int:
    """Replay requests through the plan; exit 3 if a bound is missed."""
    format_of(format, ("text", "json", "yaml"))
    one_of("--router", router, ROUTERS)
    if arrivals:
        one_of("--arrivals", arrivals, ARRIVALS)
    if trace and arrivals:
        raise typer.BadParameter("a trace has arrivals of its own", param_hint="'--arrivals'")
    for flag, given in (("--speedup", speedup != 1.0), ("--window", bool(window))):
        if given and not trace:
            raise typer.BadParameter("it belongs to --trace", param_hint=f"'{flag}'")
    if not (math.isfinite(speedup) and speedup > 0.0):
        raise typer.BadParameter(f"{speedup:g} is not above 0", param_hint="'--speedup'")
    begin, end = _window(window)
    fail_s = _time("--fail-replica", fail_replica) if fail_replica else math.inf
    from servegen.report.replay import Scene, replay_blocks, replay_json
    from servegen.simulate.arrivals import Cut
    from servegen.solve.replay import Traffic, run, verdicts
    from servegen.workload import trace_requests

    subject = _subject(path)
    recorded = trace_requests(trace) if trace else None
    kind: Any = arrivals
    traffic = Traffic(kind, requests, seed, recorded, Cut(begin, end, speedup))
    spares = subject.plan.choice.roles[0].spares
    scenes = [("as planned", 0, math.inf)]
    if fail_replica:
        scenes += [("a replica lost, with a spare", max(spares, 1), fail_s), ("a replica lost, no spare", 0, fail_s)]
    played = []
    for name, extra, fails in scenes:
        with _bar(name, subject, traffic) as told:
            result = run(subject, traffic, extra, router, fails, told)
        played.append(Scene(name, result, verdicts(subject, result)))
    if format == "text":
        show(replay_blocks(subject.plan, played))
    else:
        put_data([replay_json(subject.plan, played)], True, format)
    judged = played[0] if not fail_replica else played[1 if spares else 2]
    return 0 if judged.met else NOT_MET


def _bar(name: str, subject: Subject, traffic: Traffic) -> Any:
    from servegen.report.progress import progress
    from servegen.solve.replay import source

    return progress(name, source(subject, traffic).count)


def _subject(path: str) -> Subject:
    """The plan of a lock as it is, or of a spec that is solved now."""
    from servegen.solve.replay import of_lock, of_problem

    if path.endswith(".json"):
        return of_lock(_locked(path))
    from servegen.compile import compile_spec

    sources = read_specs([path])
    if len(sources) != 1:
        names = ", ".join(source.name for source in sources)
        raise SpecError(Diagnostic("one-spec", f"a replay takes one spec, here are {len(sources)}: {names}", Where(path)))
    solved = compile_spec(sources[0].need(), until="plan")
    if solved.problem is None or solved.plan is None:
        raise ValueError("the stage 'plan' made no plan")
    return of_problem(solved.problem, solved.plan)


def _locked(path: str) -> Any:
    from pathlib import Path

    from servegen.plan import read

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(Diagnostic("unreadable", f"cannot read it: {reason}", Where(path))) from error
    try:
        return read(text)
    except ValueError as error:
        message = f"this is no plan that servegen can read: {error}"
        raise UserError(Diagnostic("bad-lock", message, Where(path), "servegen build writes plan.lock.json")) from error


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
