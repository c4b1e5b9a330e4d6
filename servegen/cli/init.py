"""``servegen init``: a commented spec to start from."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from servegen.cli.common import put, say
from servegen.errors import Diagnostic, EmitError, Where

SCHEMA_FILE = "servegen.schema.json"
DEFAULTS = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "accelerator": "h100-sxm-80gb",
    "nodes": "1",
    "perNode": "8",
    "preset": "chat",
    "rate": "10/s",
}
YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # no strings to a YAML 1.1 reader
QUESTIONS = {
    "model": "Model (Hugging Face id)",
    "accelerator": "Accelerator (servegen catalog list accelerators)",
    "nodes": "Nodes",
    "perNode": "Accelerators per node",
    "preset": "Preset (chat, api, batch, long-context, edge)",
    "rate": "Peak requests per second (10/s)",
}
NOTE_COLUMN = 36
BAR = "\x1f"  # a character that no quoted answer can hold
#: A bar starts a note, which :func:`spec_text` brings to one column.
TEMPLATE = """\
# yaml-language-server: $schema={schema}
# `servegen plan {file}` shows what this spec gives, `servegen build {file}` writes it to out/{name}/.
# `servegen plan --show-spec {file}` shows every default that applies.
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata:
  name: {name}| names every object
spec:
  preset: {preset}| fills what is not stated here: chat, api, batch, long-context or edge
  model:
    name: {model}
    # contextLength: 8192| default: the longest prompt and answer of the traffic
  # slo:| latency that must be kept; a single value is the 95th percentile
  #   ttft: {{p95: 500ms}}| arrival to first token
  #   itl: {{p95: 50ms}}| gap between two tokens
  traffic:
{load}    isl: {{mean: 2048, p95: 6000}}| prompt tokens
    osl: {{mean: 256, p95: 768}}| output tokens
    # prefix: {{shared: 1024}}| tokens of a prompt head that all requests share
  hardware:
    pool:
      - accelerator: {accelerator}
        nodes: {nodes}
        perNode: {per_node}
        # price: 2.95/h| per accelerator; default: the median of published prices
  # constraints:
  #   engines: [sglang]
  #   weights: [bf16, fp8]
  #   topology: auto| aggregated, disaggregated, or whatever is better
  #   spareReplicas: 0| 1 for N+1
  # deploy:
  #   namespace: default
"""


def init(
    name: Annotated[str, typer.Argument(help="Name of the spec; NAME.yaml is written.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the defaults.")] = False,
    model: Annotated[str, typer.Option(help="The model to serve.")] = "",
    accelerator: Annotated[str, typer.Option(help="The accelerator to serve it on.")] = "",
) -> int:
    """Write a commented spec."""
    answers = dict(DEFAULTS) | {k: v for k, v in {"model": model, "accelerator": accelerator}.items() if v}
    if not yes and sys.stdin.isatty():
        for key, question in QUESTIONS.items():
            if key not in ("model", "accelerator") or not {"model": model, "accelerator": accelerator}[key]:
                answers[key] = typer.prompt(question, default=answers[key], err=True)
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name or _label(answers['model'])}.yaml")
    text = spec_text(file, answers)
    from servegen.spec.load import loads

    loads(text, str(file))  # what is written must load; a wrong name or answer is told here
    _create(file, text)
    put(f"{file}\n")
    schema = file.with_name(SCHEMA_FILE)
    if not schema.exists():
        from servegen.report.json import json_text
        from servegen.spec.schema import json_schema

        _create(schema, json_text(json_schema()))
        say(f"wrote {schema}, which lets an editor check and complete the spec")
    say(f"next: servegen plan {file}")
    return 0


def spec_text(file: Path, answers: dict[str, str]) -> str:
    """The commented spec of these answers, for ``file``."""
    # An edge device serves one request at a time: its preset states the load.
    load = "" if answers["preset"] == "edge" else f"    rate: {_scalar(answers['rate'])}{BAR} at peak\n"
    text = TEMPLATE.replace("|", BAR).format(
        schema=SCHEMA_FILE,
        file=file.name,
        name=_scalar(file.stem),
        preset=_scalar(answers["preset"]),
        model=_scalar(answers["model"]),
        load=load,
        accelerator=_scalar(answers["accelerator"]),
        nodes=_count(answers["nodes"]),
        per_node=_count(answers["perNode"]),
    )
    lines = (line.partition(BAR) for line in text.split("\n")[:-1])
    return "".join(f"{head:<{NOTE_COLUMN}}# {note[1:]}\n" if bar else f"{head}\n" for head, bar, note in lines)


def _label(model: str) -> str:
    """A model's id as an RFC 1123 label of at most 40 characters."""
    words = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    return words[:40].strip("-") or "model"


def _scalar(text: str) -> str:
    """``text`` as a YAML scalar of one line: plain where every reader takes it for that text, quoted else."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*|[0-9.]+/[a-z]+", text)
    return text if plain and text.lower() not in YAML_WORDS else json.dumps(text)


def _count(text: str) -> str:
    """A number as it was typed; anything else quoted, so that the check of the spec names it."""
    return text if text.isascii() and text.isdigit() else json.dumps(text)


def _create(file: Path, text: str) -> None:
    try:
        with open(file, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        message = "this file is there already and is not overwritten"
        raise EmitError(Diagnostic("exists", message, Where(str(file)), "give another name")) from None
    except OSError as error:
        message = f"cannot write: {error.strerror or os.strerror(error.errno or 0)}"
        raise EmitError(Diagnostic("io", message, Where(str(file)))) from error
