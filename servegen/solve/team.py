"""Processes that search for the members of a fleet side by side: what comes back is what one process alone would have found."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

#: Tasks below which no process is started: to start one takes as long as three or four searches.
LEAST = 16

T = TypeVar("T")


class Team:
    """So many processes at most, this one among them only as long as there are no others; they end with the ``with`` block.

    A process that cannot be started, that dies or whose result does not travel costs time and changes nothing: its task is done
    over here. A process whose parent dies sees its pipe end, and goes too.
    """

    def __init__(self, size: int = 1) -> None:
        self._size = size
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def each(self, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> list[T]:
        """``function(*task)`` of every task, in their order. Raises what the function raises, of the first task that it fails."""
        if self._size < 2 or len(tasks) < LEAST:
            return [function(*task) for task in tasks]
        self._start()
        found = self._shared(function, tasks)
        return [found[i] if i in found else function(*task) for i, task in enumerate(tasks)]

    def _start(self) -> None:
        """As many processes as are lacking. They are started anew: a copy of this one could hold a lock of a thread of it."""
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        while len(self._workers) < self._size:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            try:
                process.start()
            except OSError:  # no memory or no process left: those that there are have to do
                here.close()
                self._size = max(len(self._workers), 1)
            else:
                self._workers.append((process, here))
            there.close()

    def _shared(self, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> dict[int, T]:
        """The results that came back, by the index of the task; each process has one task at a time."""
        from multiprocessing.connection import wait

        found: dict[int, T] = {}
        left = list(reversed(range(len(tasks))))
        busy: dict[Connection, int] = {}
        idle = [pipe for _, pipe in self._workers]
        while busy or (left and idle):
            while left and idle:
                pipe, index = idle.pop(), left.pop()
                try:
                    with _uncollected():
                        pipe.send((function, tasks[index]))
                except OSError:  # it has died: its task goes to another
                    left.append(index)
                    self._forget(pipe)
                else:
                    busy[pipe] = index
            ready = wait(list(busy))
            for pipe in [p for p in busy if p in ready]:
                index = busy.pop(pipe)
                try:
                    with _uncollected():
                        done, result = pipe.recv()
                except (EOFError, OSError):
                    self._forget(pipe)
                    continue
                if done:
                    found[index] = result
                idle.append(pipe)
        return found

    def _forget(self, lost: Connection) -> None:
        self._workers = [(process, pipe) for process, pipe in self._workers if pipe is not lost]
        lost.close()


#: Nobody but this process.
ALONE = Team()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: a result is many thousands of objects at once, none of which is any."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _work(pipe: Connection) -> None:
    """Tasks until the pipe ends. What a task raises is not sent: the parent does it again, and raises it where it belongs."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    while True:
        try:
            asked = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            with _uncollected():
                function, task = pickle.loads(asked)
            answer = (True, function(*task))
        except Exception:
            answer = (False, None)
        try:
            with _uncollected():
                pipe.send(answer)
        except OSError:
            return
