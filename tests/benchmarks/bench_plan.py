"""What a plan costs: `python tests/benchmarks/bench_plan.py [SPEC]`. Prints figures; asserts nothing about time.

CPU seconds are user + system of a child process (rusage), the smallest and the median of RUNS; the smallest is the
figure to compare, because noise only adds.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = 7
BARE = "import numpy, pydantic, typer, ruamel.yaml"
COMMAND = "import sys; from servegen.cli import main; sys.argv = ['servegen', *sys.argv[1:]]; sys.exit(main())"
SCIPY = (
    "import atexit, sys\n"
    "atexit.register(lambda: print('scipy' in sys.modules, file=sys.stderr))\n"
    "from servegen.cli import main\nsys.argv = ['servegen', *sys.argv[1:]]\nsys.exit(main())"
)


def child(*argv: str, stderr: int | None = None) -> tuple[float, int]:
    """Run Python with ``argv``; CPU seconds and peak resident bytes of it alone. Raises RuntimeError if it fails."""
    pid = os.fork()
    if pid == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        if stderr is not None:
            os.dup2(stderr, 2)
        os.execv(sys.executable, [sys.executable, *argv])
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{argv} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def measure(*argv: str) -> tuple[float, float, int]:
    """Smallest and median CPU seconds, largest peak bytes, over RUNS runs after one that fills the caches."""
    child(*argv)
    runs = [child(*argv) for _ in range(RUNS)]
    seconds = [s for s, _ in runs]
    return min(seconds), statistics.median(seconds), max(b for _, b in runs)


def loads_scipy(spec: str) -> bool:
    read, write = os.pipe()
    child("-c", SCIPY, "plan", spec, stderr=write)
    os.close(write)
    with os.fdopen(read) as stream:
        return stream.read().split()[-1:] == ["True"]


def best_of(work: Callable[[], object]) -> float:
    """Smallest process CPU seconds of RUNS calls."""
    spent = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def main() -> None:
    spec = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "specs" / "llama3-70b-chat.yaml")
    print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, {RUNS} runs each: smallest / median CPU s")
    bare, bare_median, _ = measure("-c", BARE)
    print(f"bare import of numpy, pydantic, typer, ruamel.yaml   {bare:.3f} / {bare_median:.3f}")
    cli_help, help_median, _ = measure("-c", COMMAND, "--help")
    print(f"servegen --help                                      {cli_help:.3f} / {help_median:.3f}")
    plan, plan_median, peak = measure("-c", COMMAND, "plan", spec)
    print(f"servegen plan {Path(spec).name:<38} {plan:.3f} / {plan_median:.3f}")
    print(f"  above the bare import                              {plan - bare:.3f} / {plan_median - bare_median:.3f}")
    print(f"  peak resident memory                               {peak / 1e6:.0f} MB")
    print(f"  scipy imported                                     {'yes' if loads_scipy(spec) else 'no'}")

    from servegen.solve.resolve import resolve
    from servegen.solve.search import search, solve
    from servegen.spec.load import load

    problem = resolve(load(Path(spec))[0])
    searched = solve(problem).searched
    seconds = best_of(lambda: solve(problem))
    rate = searched / seconds
    inside = best_of(lambda: search(problem))
    print(f"search(problem) in process: {searched} candidates in {inside:.3f} s = {searched / inside:,.0f} candidates/s")
    print(f"  with the explanation and the pessimistic case (solve): {seconds:.3f} s = {rate:,.0f} candidates/s")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"  peak resident memory of this process               {own / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
