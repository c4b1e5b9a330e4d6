#!/usr/bin/env python3
"""Run the engines' own parsers over generated launch scripts, on a machine without an accelerator.

Usage: parse_real.py --sglang|--megatron|--router [--validate] [SCRIPT...]
Exit: 0 accepted, 1 rejected, 3 could not be checked.

Without SCRIPTs it takes every out/*/launch/*.sh that starts the chosen engine. Run it with the Python of an environment
that has the engine; nothing of servegen is needed.

--sglang    torch (CPU), `pip install --no-deps sglang==0.5.23`, numpy orjson psutil pybase64 requests packaging pillow
            starlette msgspec pydantic pyzmq tqdm IPython aiohttp; with --validate also transformers and dill.
--megatron  torch, numpy, typing_extensions; MEGATRON_CORE_DIR = folder with the unzipped megatron-core wheel.
--router    `pip install sglang-router==0.3.2`.

--validate goes beyond parsing. SGLang: resolves and checks the arguments as the server does at start, against a model
folder that is made up from --config (default: a tiny Llama), because no weights are at hand. Megatron: validate_args.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import shlex
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = {
    "sglang": "sglang.launch_server",
    "megatron": "run_text_generation_server.py",
    "router": "sglang_router.launch_router",
}
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 2048,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


class _AnyType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any()


class _Any(metaclass=_AnyType):
    """Answers anything: stands in for what is imported but not used while arguments resolve."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes whatever the replaced class took."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Any()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any()

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, key: object) -> Any:
        return _Any()

    def __iter__(self) -> Any:
        return iter(())


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyType(name, (_Any,), {}) if name[:1].isupper() else _Any()  # classes may stand in isinstance()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on sys.meta_path, so that it answers only for what is not installed."""

    names = frozenset({"torchvision", "tvm_ffi", "sentencepiece", "compressed_tensors", "gguf", "triton", "flashinfer"})

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__version__ = "0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run in a stand-in."""


def _stand_in() -> None:
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.append(_Finder())


def sglang_parser() -> argparse.ArgumentParser:
    import torch  # noqa: F401  before the stand-ins: its optional look-ups must see the real machine

    with contextlib.suppress(ImportError):
        from transformers.utils import import_utils

        for name in ("torchvision", "sentencepiece", "gguf", "compressed_tensors"):  # these answers are cached
            getattr(import_utils, f"is_{name}_available", lambda: None)()
    _stand_in()
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(prog="sglang serve", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


def _megatron_arguments() -> Any:
    import typing

    import typing_extensions

    folder = os.environ["MEGATRON_CORE_DIR"]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    typing.override = typing_extensions.override  # type: ignore[attr-defined]  # the wheel asks for Python 3.12
    import torch

    _stand_in()
    device = types.SimpleNamespace(major=9, minor=0, total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *a, **k: device
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    import megatron.training.arguments as arguments  # type: ignore[import-not-found]

    return arguments


def megatron_parser() -> argparse.ArgumentParser:
    """The wheel's parser alone, without the flags of the server script."""
    arguments = _megatron_arguments()
    parser = argparse.ArgumentParser(prog="megatron", allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    return parser


def megatron_version() -> str:
    """From the folder name of the unzipped wheel's metadata."""
    info = next(Path(os.environ["MEGATRON_CORE_DIR"]).glob("megatron_core-*.dist-info"))
    return info.name.removeprefix("megatron_core-").removesuffix(".dist-info")


def router_parser() -> argparse.ArgumentParser:
    from sglang_router.router_args import RouterArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(prog="sglang_router", allow_abbrev=False)
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return parser


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "sglang": sglang_parser, "megatron": megatron_parser, "router": router_parser,
}  # fmt: skip


def command(path: Path) -> tuple[dict[str, str], list[str]]:
    """(exported variables, words of the exec command) of a launch script; shell expansions stay as written."""
    env: dict[str, str] = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["export"]:
            env.update(w.split("=", 1) for w in words[1:] if "=" in w)  # type: ignore[misc]
        elif words[:1] == ["exec"]:
            return env, words[1:]
    return env, []


#: What a node of a replica over several says of itself.
NODE = {"${LEADER_ADDRESS}": "10.0.0.1", "${NODE_RANK}": "0"}


def flags_of(words: list[str], program: str) -> list[str]:
    """The words after the program, without what the shell would expand (`$@`, `${endpoints[@]}`); of a group, rank 0's."""
    at = next((i for i, w in enumerate(words) if w.endswith(program)), None)
    if at is None:
        return []
    for name, value in NODE.items():
        words = [w.replace(name, value) for w in words]
    return [w for w in words[at + 1 :] if "$" not in w]


def check_sglang(words: list[str], env: dict[str, str], validate: bool, config: dict[str, Any]) -> str:
    from sglang.srt.server_args import prepare_server_args  # type: ignore[import-not-found]

    sglang_parser().parse_args(words)
    if not validate:
        return "parsed"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        at = words.index("--model-path") + 1
        words = [*words[:at], folder, *words[at + 1 :], "--device", "cuda"]
        os.environ.update(env)
        server_args = prepare_server_args(words)
        server_args.resolve_once()
        server_args.check_server_args()
    return "parsed, resolved and checked"


def check_megatron(words: list[str], env: dict[str, str], validate: bool, tp: str) -> str:
    arguments = _megatron_arguments()

    def server_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--port", type=int, default=5000)
        return parser

    os.environ.update(env, WORLD_SIZE=tp, RANK="0")
    sys.argv = ["run_text_generation_server.py", *words]
    args = arguments.parse_args(extra_args_provider=server_flags)
    if not validate:
        return "parsed"
    arguments.validate_args(args, {"no_load_rng": True, "no_load_optim": True, "exit_on_missing_checkpoint": True})
    return "parsed and validated"


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    engines = options.add_mutually_exclusive_group(required=True)
    for name in PROGRAMS:
        engines.add_argument(f"--{name}", dest="engine", action="store_const", const=name)
    options.add_argument("--validate", action="store_true")
    options.add_argument("--config", type=Path, help="config.json of the model to resolve SGLang's arguments against")
    options.add_argument("scripts", nargs="*", type=Path)
    chosen = options.parse_args()
    program = PROGRAMS[chosen.engine]
    root = Path(__file__).resolve().parents[2]
    scripts = chosen.scripts or sorted(root.glob("out/*/launch/*.sh"))
    config = json.loads(chosen.config.read_text()) if chosen.config else TINY
    try:
        parser = PARSERS[chosen.engine]()
    except (ImportError, KeyError) as error:
        print(f"UNCHECKED: {chosen.engine} cannot be imported here: {error!r}")
        return 3
    seen = rejected = 0
    for script in scripts:
        env, words = command(script)
        if not any(w.endswith(program) for w in words):
            continue
        seen += 1
        flags = flags_of(words, program)
        noise = io.StringIO()
        try:
            with contextlib.redirect_stderr(noise), contextlib.redirect_stdout(noise):
                if chosen.engine == "sglang":
                    verdict = check_sglang(flags, env, chosen.validate, config)
                elif chosen.engine == "megatron":
                    verdict = check_megatron(flags, env, chosen.validate, words[words.index("--nproc-per-node") + 1])
                else:
                    parser.parse_args(flags)
                    verdict = "parsed"
        except (Exception, SystemExit) as error:
            rejected += 1
            last = noise.getvalue().strip().splitlines()[-1:]
            print(f"REJECTED {script}: {type(error).__name__}: {error} {' '.join(last)}")
            continue
        warnings = [w for w in noise.getvalue().splitlines() if w.startswith(("WARNING", "DeprecationWarning"))]
        print(f"ACCEPTED {script} ({verdict})" + "".join(f"\n  {w}" for w in warnings))
    if not seen:
        print(f"UNCHECKED: no script starts {program}")
        return 3
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
