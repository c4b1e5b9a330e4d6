"""Processes side by side: the same answer as alone, whatever befalls them; and none is left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servegen.codec import dumps
from servegen.errors import InfeasibleError
from servegen.solve.fleet import FleetObjective, FleetProblem, solve_fleet
from servegen.solve.team import LEAST, Team
from tests.solver.specs import LLAMA_8B, LLAMA_70B
from tests.solver.test_fleet import fleet, member

pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parents[2]
TASKS = [(i,) for i in range(3 * LEAST)]


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started finds these tests, wherever this one found them."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


def square(x: int) -> int:
    return x * x


def mortal(x: int) -> int:
    """The square; a process that is not the first dies of every fifth."""
    if x % 5 == 0 and multiprocessing.parent_process() is not None:
        os._exit(1)
    return x * x


def picky(x: int) -> int:
    if x % 7 == 5:
        raise InfeasibleError("fleet", "pool", f"task {x}", "", (), {}, 0)
    return x


def where(x: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def test_results_come_in_the_order_of_the_tasks() -> None:
    with Team(2) as team:
        assert team.each(square, TASKS) == [x * x for (x,) in TASKS]
        assert team.each(square, TASKS[::-1]) == [x * x for (x,) in TASKS[::-1]]
        others = set(team.each(where, TASKS))
    assert len(others) == 2
    assert os.getpid() not in others
    assert not multiprocessing.active_children()


def test_for_few_tasks_or_one_process_none_is_started() -> None:
    with Team(2) as team:
        assert set(team.each(where, TASKS[: LEAST - 1])) == {os.getpid()}
    assert set(Team().each(where, TASKS)) == {os.getpid()}


def test_a_process_that_dies_costs_time_only() -> None:
    with Team(3) as team:
        assert team.each(mortal, TASKS) == [x * x for (x,) in TASKS]
        assert team.each(mortal, TASKS) == [x * x for (x,) in TASKS]


class Foreign:
    """What no other process can read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _here, (str(os.getpid()),)


def _here(pid: str) -> int:
    if str(os.getpid()) != pid:
        raise ImportError("there is nothing of that name here")
    return int(pid)


def test_a_task_that_cannot_be_read_is_done_here(capfd: pytest.CaptureFixture[str]) -> None:
    with Team(2) as team:
        assert team.each(type, [(Foreign(),) for _ in TASKS]) == [Foreign] * len(TASKS)
    assert capfd.readouterr().err == ""


def test_what_a_task_raises_is_raised_here_of_the_first_that_fails() -> None:
    with Team(2) as team, pytest.raises(InfeasibleError, match="task 5"):
        team.each(picky, TASKS)
    assert not multiprocessing.active_children()


def test_processes_go_with_their_parent() -> None:
    """Even where it is killed and can say nothing."""
    code = (
        "import sys, time\nfrom servegen.solve.team import Team\nfrom tests.solver.test_team import TASKS, where\n"
        "if __name__ == '__main__':\n    team = Team(2)\n"
        "    print(*sorted(set(team.each(where, TASKS))), flush=True)\n    time.sleep(60)\n"
    )
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=here, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        started = [int(word) for word in parent.stdout.readline().split()]
        assert len(started) == 2
        assert all(_lives(pid) for pid in started)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until = time.monotonic() + 20.0
        while any(_lives(pid) for pid in started) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(_lives(pid) for pid in started)


def _lives(pid: int) -> bool:
    """Whether there is such a process that does anything; one that nobody has waited for yet is dead all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("objective", "nodes"), [("cost", 4), ("unmet", 1), ("cost", 1)], ids=["enough", "part of the demand", "infeasible"]
)
def test_a_fleet_is_solved_alike_by_one_and_by_several(objective: FleetObjective, nodes: int) -> None:
    question = _large(objective, nodes)
    with Team(2) as team:
        assert _told(question, team) == _told(question, Team())


def _large(objective: FleetObjective, nodes: int) -> FleetProblem:
    fast = f"{{accelerator: h100, nodes: {nodes}, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}"
    pool = f"[{fast}, {{accelerator: l40s, nodes: {nodes}, perNode: 4}}]"
    models = (LLAMA_8B, LLAMA_70B)
    return fleet(objective, *((i % 3, member(f"{1 + i % 4}/s", pool=pool, model=models[i % 2])) for i in range(LEAST + 2)))


def _told(question: FleetProblem, team: Team) -> str:
    try:
        solved = solve_fleet(question, team)
    except InfeasibleError as error:
        return repr((error.message, error.best, error.fixes, error.searched))
    plans = "".join(dumps(p) for p in solved.members if p is not None)
    return dumps(solved.plan) + plans
