"""A device to probe by torch: the CUDA or ROCm devices that are visible, else the CPU."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from servegen.calibrate.probe import DeviceInfo
from servegen.errors import Diagnostic, NotBuiltError

#: Operands stand in a buffer of so many bytes and are taken from it in turn, so that no cache holds the next one.
BUFFER_BYTES = {"cpu": 1 << 29, "cuda": 4 << 30}
#: Random values of a buffer; it repeats them.
PATTERN_VALUES = 1 << 20
#: Views of a buffer that take turns.
MOST_VIEWS = 1024
#: The product (m, n, k) by which the number of threads is chosen, and the seconds that each try takes.
TRIAL, TRIAL_S = (64, 1024, 1024), 0.2
#: Steps in one CUDA graph, and the seconds of a step from which launching it no longer shows.
GRAPH_STEPS, GRAPH_BELOW_S = 64, 1e-3
#: Repeats of an all-reduce whose median counts, and the runs that each of them has at most.
REPEATS, MOST_RUNS = 5, 200
#: Compute capability from which 16-bit arithmetic is bf16, and from which there are fp8 products.
BF16_CAPABILITY, FP8_CAPABILITY = 8.0, 8.9


def open_device() -> TorchDevice:
    """The device that torch sees. NotBuiltError without torch."""
    return TorchDevice(_torch())


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        message = "probing takes torch, which is not installed"
        raise NotBuiltError(Diagnostic("no-torch", message, hint="pip install 'servegen-compiler[probe]'")) from error
    return torch


class TorchDevice:
    """Times by :class:`torch.utils.benchmark.Timer`: it warms up, runs in blocks, and waits for the device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # Its import looks for a compiler that nothing here needs, and complains.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        self._where = "cuda" if torch.cuda.is_available() else "cpu"
        self.info = _cuda_info(torch) if self._where == "cuda" else _cpu_info(torch)
        room = min(BUFFER_BYTES[self._where], int(self.info.memory_bytes) // 8)
        self._room = room
        self._buffer: tuple[str, Any] = ("", None)
        if self._where == "cpu":
            torch.set_num_threads(self._fastest())

    def _fastest(self) -> int:
        """How many threads multiply fastest: where others are at work or two share a core, all of them wait for the slowest."""

        def seconds(threads: int) -> float:
            self._torch.set_num_threads(threads)
            return self.gemm_s("bf16", *TRIAL, TRIAL_S) or math.inf

        most = self.info.host_cpus
        return min(sorted({most, max(most // 2, 1), 1}, reverse=True), key=seconds)

    def dtypes(self) -> Sequence[str]:
        """bf16 always (fp16 where a GPU has no bf16), int8 and fp8 where a product of that kind runs."""
        able = ["bf16"]
        if self._runs("int8"):
            able.append("int8")
        new = self.info.compute_capability >= FP8_CAPABILITY or self.info.vendor == "amd"
        if new and self._runs("fp8"):
            able.append("fp8")
        return able

    def _runs(self, dtype: str) -> bool:
        """Whether there is a product of that precision: torch's name for it, and a kernel on this device."""
        with self._torch.inference_mode():
            try:
                self._product(dtype, 64, 64, 64)()
            except (RuntimeError, AttributeError):
                return False
        return True

    def copy_s(self, size_bytes: int, limit_s: float) -> float | None:
        def step() -> Callable[[], object]:
            source = self._torch.ones(size_bytes, dtype=self._torch.uint8, device=self._where)
            target = self._torch.zeros_like(source)
            return lambda: target.copy_(source)

        self._buffer = ("", None)
        return self._measure(step, limit_s)

    def gemm_s(self, dtype: str, m: int, n: int, k: int, limit_s: float) -> float | None:
        return self._measure(lambda: self._product(dtype, m, n, k), limit_s)

    def prefill_s(self, heads: int, head_dim: int, tokens: int, limit_s: float) -> float | None:
        attend = self._torch.nn.functional.scaled_dot_product_attention

        def step() -> Callable[[], object]:
            size = (1, heads, tokens, head_dim)
            turns = cycle(zip(*(self._views("bf16", size) for _ in range(3)), strict=True))
            return lambda: attend(*next(turns), is_causal=True)

        return self._measure(step, limit_s)

    def decode_s(self, batch: int, heads: int, kv_heads: int, head_dim: int, context: int, limit_s: float) -> float | None:
        attend = self._torch.nn.functional.scaled_dot_product_attention

        def step() -> Callable[[], object]:
            # The query heads of one KV head stand where the queries of a prompt would: each K and V is read once.
            query = self._views("bf16", (batch, kv_heads, heads // kv_heads, head_dim))[0].clone()
            both = self._views("bf16", (2, batch, kv_heads, context, head_dim))
            turns = cycle([(pair[0], pair[1]) for pair in both])
            return lambda: attend(query, *next(turns))

        return self._measure(step, limit_s)

    def allreduce_s(self, devices: int, sizes_bytes: Sequence[int], limit_s: float) -> Sequence[float]:
        return allreduce_s("nccl" if self._where == "cuda" else "gloo", devices, sizes_bytes, limit_s)

    def _measure(self, prepare: Callable[[], Callable[[], object]], limit_s: float) -> float | None:
        """Median seconds of what ``prepare`` returns; None where the device refuses it."""
        with self._torch.inference_mode():
            try:
                step = prepare()
                step()
                runs, steps = self._launched_at_once(step)
                return float(_timer(self._torch, steps).adaptive_autorange(max_run_time=limit_s).median) / runs
            except RuntimeError:  # a size that its kernels do not take, or that it has no memory for
                return None

    def _launched_at_once(self, step: Callable[[], object]) -> tuple[int, Callable[[], object]]:
        """So many steps as one call: a GPU runs a small kernel faster than Python launches it, so engines launch by CUDA graphs.

        One step where there is no GPU, where the step is long, or where a graph cannot hold it.
        """
        torch = self._torch
        if self._where == "cpu" or _timer(torch, step).timeit(1).median >= GRAPH_BELOW_S:
            return 1, step
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(GRAPH_STEPS):
                    step()
        except RuntimeError:
            return 1, step
        return GRAPH_STEPS, graph.replay

    def _product(self, dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
        torch = self._torch
        turns = cycle(self._views(dtype, (n, k)))
        left = self._views(dtype, (m, k))[0].clone()
        if dtype == "int8":
            return lambda: torch._int_mm(left, next(turns).t())
        if dtype == "fp8":
            one = torch.ones((), dtype=torch.float32, device=self._where)
            return lambda: torch._scaled_mm(left, next(turns).t(), one, one, out_dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(left, next(turns))

    def _views(self, dtype: str, size: tuple[int, ...]) -> list[Any]:
        """Tensors of that size side by side in the buffer. RuntimeError where not even one fits."""
        flat = self._values(dtype)
        each = 1
        for length in size:
            each *= length
        count = min(flat.numel() // each, MOST_VIEWS)
        if not count:
            raise RuntimeError("the operand is larger than the buffer")
        return [flat[i * each : (i + 1) * each].view(size) for i in range(count)]

    def _values(self, dtype: str) -> Any:
        """The buffer in that precision; there is one at a time."""
        if self._buffer[0] != dtype:
            self._buffer = ("", None)
            torch = self._torch
            random = torch.Generator().manual_seed(0)
            if dtype == "int8":
                pattern = torch.randint(-8, 8, (PATTERN_VALUES,), generator=random, dtype=torch.int8)
            else:
                pattern = torch.randn(PATTERN_VALUES, generator=random).to(self._type(dtype))
            repeats = max(self._room // (pattern.numel() * pattern.element_size()), 1)
            self._buffer = (dtype, pattern.to(self._where).repeat(repeats))
        return self._buffer[1]

    def _type(self, dtype: str) -> Any:
        torch = self._torch
        if dtype == "fp8":
            old_amd = self.info.vendor == "amd" and "gfx94" in torch.cuda.get_device_properties(0).gcnArchName
            return torch.float8_e4m3fnuz if old_amd else torch.float8_e4m3fn
        without = self.info.vendor == "nvidia" and self.info.compute_capability < BF16_CAPABILITY
        return torch.float16 if without else torch.bfloat16


def _timer(torch: Any, step: Callable[[], object]) -> Any:
    from torch.utils.benchmark import Timer

    return Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())


def _cuda_info(torch: Any) -> DeviceInfo:
    first = torch.cuda.get_device_properties(0)
    names = [torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())]
    amd = bool(torch.version.hip)
    return DeviceInfo(
        name=first.name,
        vendor="amd" if amd else "nvidia",
        count=next((i for i, name in enumerate(names) if name != first.name), len(names)),
        memory_bytes=float(first.total_memory),
        compute_capability=0.0 if amd else first.major + first.minor / 10,
        host_cpus=_cpus(),
        host_memory_bytes=_memory_bytes(),
        tool=_tool(torch),
    )


def _cpu_info(torch: Any) -> DeviceInfo:
    memory = _memory_bytes()
    return DeviceInfo(_cpu_name(), "cpu", 1, memory, 0.0, _cpus(), memory, _tool(torch))


def _tool(torch: Any) -> str:
    return f"torch {str(torch.__version__).partition('+')[0]}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> float:
    """Memory of the machine, or of the container where that is less."""
    machine = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text("ascii").strip() if limit.is_file() else ""
    return min(machine, float(text)) if text.isdigit() else machine


def allreduce_s(backend: str, devices: int, sizes_bytes: Sequence[int], limit_s: float) -> Sequence[float]:
    """Median seconds of all-reduces of each size, of the slowest of ``devices`` processes; empty where they cannot talk."""
    torch = _torch()
    from torch import multiprocessing

    if not torch.distributed.is_available():
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(_rank, (backend, devices, tuple(sizes_bytes), limit_s, folder), nprocs=devices)
        except Exception:  # what a child raises arrives as a plain Exception
            return []
        return [float(s) for s in json.loads((Path(folder) / "seconds.json").read_text("ascii"))]


def _rank(rank: int, backend: str, devices: int, sizes_bytes: Sequence[int], limit_s: float, folder: str) -> None:
    """One process of an all-reduce; the first writes what was measured."""
    import torch
    from torch import distributed

    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    where = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=devices)
    found: list[float] = []
    for size in sizes_bytes:
        message = torch.zeros(size // 2, dtype=torch.bfloat16, device=where)
        timer = _timer(torch, partial(distributed.all_reduce, message))
        first = torch.tensor([timer.timeit(3).median], dtype=torch.float64, device=where)
        distributed.all_reduce(first, op=distributed.ReduceOp.MAX)  # all must run as often
        runs = int(min(max(limit_s / len(sizes_bytes) / REPEATS / float(first), 1), MOST_RUNS))
        times = sorted(timer.timeit(runs).median for _ in range(REPEATS))
        slowest = torch.tensor([times[REPEATS // 2]], dtype=torch.float64, device=where)
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
        found.append(float(slowest))
    if rank == 0:
        (Path(folder) / "seconds.json").write_text(json.dumps(found), "ascii")
    distributed.destroy_process_group()
