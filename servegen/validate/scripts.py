"""Launch scripts, read back: what a shell would run must be what was planned and what the engine accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from servegen.engines import decisions, sglang_router
from servegen.engines.contract import load_contract
from servegen.engines.launch import IN_SCRIPT, Arg, Launch, Place
from servegen.errors import Diagnostic, Where
from servegen.plan import Plan
from servegen.record import record
from servegen.validate.decided import check_decided
from servegen.validate.serving import check_serving
from servegen.validate.shell import check_reached
from servegen.validate.syntax import whole

#: Words that stay for the shell: the user's own arguments, and the addresses that a router's script collects.
_OPEN_WORDS = ("$@", "${endpoints[@]}")
#: Whose fault it is where no key of the spec is behind a script: the engine's template wrote it.
_ENGINE = "constraints.engines"
_DEFAULTED = re.compile(r'^(\w+)="\$\{\1:-([^}"$`\\]*)\}"$')
#: A word as it is written, and its parts: quoted, escaped, or a bare character.
_WORD = re.compile(r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+""")
_PART = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^'"\\]""")
_LINE = re.compile(r"line (\d+): ")
#: Bare characters that mean themselves to every shell.
_PLAIN = re.compile(r"[\w@%+=:,./-]", re.ASCII)
#: Stands for a node where the engine's parser wants values, not references.
_SOME_NODE = Place("leader", "0")

#: The flags of tensor and pipeline parallelism, by engine.
_PARALLEL = (("--tp-size", "--pp-size"), ("--tensor-model-parallel-size", "--pipeline-model-parallel-size"))
#: What config.json calls the number of routed experts, by architecture.
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


@record
class Script:
    """A launch script, parsed: ``argv`` of its exec command without what stays for the shell, and what it exports.

    ``live`` are the indices of words that a shell reads more into than it sees here (an expansion, a pattern, an operator);
    ``split`` are words, as they are written, of which it makes as many as their values have: expansions without quotes.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    takes_arguments: bool
    live: frozenset[int] = frozenset()
    split: tuple[str, ...] = ()


def check_script(path: str, text: str, launch: Launch, plan: Plan | None = None, template: str = "") -> list[Diagnostic]:
    """Findings about one script at ``path``, which ``template`` wrote; [] when a shell would start ``launch`` just as planned.

    Codes: script-* about the script, flag-* what the engine's parser would refuse (flag-deprecated: a warning),
    value-* what it would let pass and then fail on. ``plan`` adds what needs the model: the longest context.
    """
    if launch.role is None:
        launch = sglang_router.standalone(launch)
    found = [*_form(text), *check_reached(text)]
    try:
        script = parse_script(text)
    except ValueError as error:
        found.append(Diagnostic("script-syntax", f"a shell cannot read it: {error}"))
    else:
        found += _against(script, launch)
        found += _of_command(to_args(_at_some_node(script, launch)[len(launch.program) :]), launch, plan)
    planned = _of_command(launch.at(_SOME_NODE).args, launch, plan)  # what holds whatever a template makes of it
    if plan is not None:
        told = {_head(d) for d in planned}
        decided = [d for d in check_decided(plan, launch) if _head(d) not in told]
        found, planned = [*found, *decided], [*planned, *decided]
    return [replace(d, where=_where(path, text, d), hint=_hint(d, d in planned, template)) for d in found]


def _of_command(args: Sequence[Arg], launch: Launch, plan: Plan | None) -> list[Diagnostic]:
    """Findings about the flags of a command, wherever they come from."""
    found = load_contract(launch.contract).check(args)
    return [*found, *check_values(args, plan), *check_serving(args, launch, plan), *_world(launch, plan)]


def _hint(found: Diagnostic, planned: bool, template: str) -> str:
    """The spec key that governs a finding, the template where that is at fault, and what would be right.

    Only what holds of the planned command, too, is the doing of the user's overrides; the rest is that of the template.
    """
    key = decisions.governing(_head(found)) or _ENGINE
    wrote = f"; written by template {template}" if template else ""
    if planned:
        said = f"spec.deploy.overrides.args; {found.hint}" if found.hint else "spec.deploy.overrides.args"
        return (found.hint if "spec." in found.hint else said) + wrote
    if found.code == "script-env":
        key = "deploy.overrides.env"
    return f"spec.{key}{wrote}" + (f"; {found.hint}" if found.hint else "")


def parse_script(text: str) -> Script:
    """The script's exec command and exports. ValueError if its quoting is broken or there is not one exec command."""
    defaults: dict[str, str] = {}
    env: dict[str, str] = {}
    commands: list[list[_Word]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if match := _DEFAULTED.match(line):
            defaults[match[1]] = match[2]
        if not line.startswith(("export ", "exec ")):
            continue
        words = _words(line, defaults)
        if words[0].text == "export":
            env.update((name, value) for name, _, value in (w.text.partition("=") for w in words[1:] if not w.live))
        else:
            commands.append(words[1:])
    if len(commands) != 1:
        raise ValueError(f"it has {len(commands)} exec commands instead of one")
    own = [word for word in commands[0] if not (word.live and word.text in _OPEN_WORDS)]
    argv = tuple(_expand(word.text, defaults) for word in own)
    last = commands[0][-1:]
    takes = bool(last) and last[0].live and last[0].text == "$@"
    split = tuple(word.text for word in commands[0] if word.split)
    return Script(argv, env, takes, frozenset(i for i, word in enumerate(own) if word.live), split)


@record
class _Word:
    """A word without its quotes; see :class:`Script` for what it may be."""

    text: str
    live: bool
    split: bool


def _words(line: str, defaults: Iterable[str]) -> list[_Word]:
    """The words of a command. ValueError if the quoting is broken."""
    shlex.split(line, comments=True)
    words: list[_Word] = []
    for raw in _WORD.findall(line):
        if raw.startswith("#"):
            break
        known = raw
        for name in defaults:
            known = known.replace(f"${{{name}}}", "")
        live = any(_is_live(part) for part in _PART.findall(known))
        words.append(_Word("".join(shlex.split(raw)), live, any(part in ("$", "`") for part in _PART.findall(raw))))
    return words


def _is_live(part: str) -> bool:
    if part[0] in "'\\":
        return False
    if part[0] == '"':
        return any(c in re.sub(r"\\.", "", part) for c in "$`")
    return _PLAIN.fullmatch(part) is None


def _at_some_node(script: Script, launch: Launch) -> tuple[str, ...]:
    """The words of the script, with values in place of what only a node knows."""
    here, some = launch.at(IN_SCRIPT).argv(), launch.at(_SOME_NODE).argv()
    known = {i: some[i] for i in range(len(here)) if here[i] != some[i] and script.argv[i : i + 1] == here[i : i + 1]}
    return tuple(known.get(i, word) for i, word in enumerate(script.argv))


def to_args(words: Sequence[str]) -> tuple[Arg, ...]:
    """Words after the program, grouped by flag. A word before the first flag becomes a flag, so that it is found."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return tuple(Arg(g[0], tuple(g[1:])) for g in groups)


#: Copies of the whole model in one SGLang server, each on ranks of its own unless only attention is copied.
_COPIES, _SHARED = "--dp-size", ("--enable-dp-attention", "--attn-dp-size")


def check_values(args: Sequence[Arg], plan: Plan | None = None) -> list[Diagnostic]:
    """Values that parsers accept and servers fail on, or serve wrongly with (SGLang and Megatron flags alike)."""
    values = {a.flag: a.values[0] for a in args if a.values}
    found: list[Diagnostic] = []

    def number(flag: str, legal: Callable[[float], bool], rule: str) -> float | None:
        try:
            value = float(values[flag])
        except (KeyError, ValueError):  # absent, or reported by the contract check
            return None
        if not legal(value):
            found.append(Diagnostic("value-range", f"{flag} {values[flag]}: it must be {rule}"))
        return value

    number("--base-gpu-id", lambda v: v == 0, "0: a pod's accelerators are numbered from there")
    number("--mem-fraction-static", lambda v: 0 < v < 1, "above 0 and below 1")
    for flag in ("--port", "--disaggregation-bootstrap-port", "--prometheus-port", "--service-discovery-port"):
        number(flag, lambda v: 1 <= v <= 65535, "a port, 1 to 65535")
    for flag in ("--max-running-requests", "--inference-max-requests", "--context-length", "--max-prefill-tokens"):
        number(flag, lambda v: v >= 1, "at least 1")
    tp = number("--tp-size", lambda v: v >= 1, "at least 1")
    for flag in ("--ep-size", "--attn-dp-size"):
        number(flag, lambda v: v >= 1 and (tp or 1) % v == 0, "a divisor of --tp-size")
    pp = number("--pp-size", lambda v: v >= 1, "at least 1")
    world = (tp or 1) * (pp or 1)
    number("--nnodes", lambda v: v >= 1 and world % v == 0, "a divisor of --tp-size x --pp-size")
    heads = number("--num-attention-heads", lambda v: v >= 1, "at least 1")
    for flag in ("--num-query-groups", "--tensor-model-parallel-size"):
        number(flag, lambda v: v >= 1 and (heads or v) % v == 0, "a divisor of --num-attention-heads")
    page = number("--page-size", lambda v: v >= 1, "at least 1")
    chunk_rule = "-1 or a multiple of --page-size"
    number("--chunked-prefill-size", lambda v: v == -1 or (v >= 1 and v % (page or 1) == 0), chunk_rule)
    if plan is not None:
        longest = plan.model.max_context
        for flag in ("--context-length", "--inference-max-seq-length"):
            number(flag, lambda v: v <= longest, f"at most the model's {longest}")
        experts = next((n for key in _EXPERT_KEYS if isinstance(n := plan.model.hf_config.get(key), int) and n > 0), 0)
        if experts:
            number("--ep-size", lambda v: v < 1 or experts % v == 0, f"a divisor of the model's {experts} experts")
    return found


def _world(launch: Launch, plan: Plan | None) -> list[Diagnostic]:
    """What is wrong with the number of processes: a server of tp x pp ranks on other than as many accelerators hangs."""
    role = next((r for r in plan.choice.roles if r.name == launch.name), None) if plan is not None else None
    if role is None:
        return []
    values = {a.flag: number for a in launch.args if a.values and (number := whole(a.values[0])) is not None}
    flags = next((pair for pair in _PARALLEL if pair[0] in values), None)
    if flags is None:
        return []
    ranks = values[flags[0]] * values.get(flags[1], 1)
    if ranks == role.devices:
        copies = values.get(_COPIES, 1)
        if copies == 1 or any(a.flag in _SHARED for a in launch.args):
            return []
        taken = copies * ranks
        message = f"{_COPIES} {copies}: {copies} copies of the model take {taken} accelerators, the pod has {role.devices}"
        return [Diagnostic("value-devices", message, hint="spec.deploy.overrides.args must not change it; replicas do")]
    message = f"{flags[0]} {values[flags[0]]}: the server starts {ranks} ranks, its pod has {role.devices} accelerators"
    return [Diagnostic("value-devices", message, hint="spec.deploy.overrides.args must not change it; constraints.tp does")]


def _form(text: str) -> list[Diagnostic]:
    """Findings about the text that hold whatever it runs."""
    found = []
    lines = text.splitlines()
    if lines[:1] != ["#!/usr/bin/env bash"]:
        found.append(Diagnostic("script-form", "the first line must be #!/usr/bin/env bash"))
    if "set -euo pipefail" not in lines:
        found.append(Diagnostic("script-form", "set -euo pipefail is missing: a failed step would be passed over"))
    if not text.endswith("\n") or "\r" in text:
        found.append(Diagnostic("script-form", "lines must end with a line feed, the last one too"))
    for i, line in enumerate(lines, start=1):
        if re.search(r"\\[ \t]+(#.*)?$", line):
            message = f"line {i}: something follows the backslash, so that the command ends there"
            found.append(Diagnostic("script-continuation", message))
    return found


def _against(script: Script, launch: Launch) -> list[Diagnostic]:
    """Findings about where the script departs from the planned command and environment."""
    found = []
    want, some = launch.at(IN_SCRIPT).argv(), launch.at(_SOME_NODE).argv()
    for i in range(max(len(want), len(script.argv))):
        have, due = script.argv[i : i + 1], want[i : i + 1]
        expands = want[i : i + 1] != some[i : i + 1]  # what only the node knows
        hint = "it must write launch.argv() as it is"
        if have != due:
            is_, planned = " ".join(have) or "missing", " ".join(due) or "the end"
            message = f"word {i + 1} of the command is {is_}, planned: {planned}"
        elif (i in script.live) != expands:
            how = "must be expanded by the shell, and is quoted" if expands else "must be literal, and a shell reads more into it"
            message = f"word {i + 1} of the command, {have[0]}, {how}"
        else:
            continue
        found.append(Diagnostic("script-words", message, hint=hint))
        break
    known = {*_OPEN_WORDS, *(word for word, at in zip(want, some, strict=True) if word != at)}
    for word in [word for word in script.split if word in known]:
        message = f"{word} must be in double quotes: without them a shell splits at white space what it stands for"
        found.append(Diagnostic("script-quotes", message, hint=f'"{word}"'))
    for name, value in launch.env.items():
        if script.env.get(name) != value:
            message = f"{name} must be exported as {value!r}, it is {script.env.get(name)!r}"
            found.append(Diagnostic("script-env", message))
    for name in sorted(script.env.keys() - launch.env.keys()):
        message = f"{name} is exported, which the plan does not do"
        found.append(Diagnostic("script-env", message, hint="set it there"))
    if not script.takes_arguments:
        found.append(Diagnostic("script-form", 'the command must end with "$@", so that flags can be appended'))
    return found


def _expand(word: str, defaults: dict[str, str]) -> str:
    """``word`` as the shell would read it where the variables that have a default are not set."""
    for name, value in defaults.items():
        word = word.replace(f"${{{name}}}", value)
    return word


def _head(finding: Diagnostic) -> str:
    """The flag or variable which the message begins with."""
    return finding.message.split(" ", 1)[0].rstrip(":")


def _where(path: str, text: str, finding: Diagnostic) -> Where:
    """The line that a message names, or that holds the flag or variable which it begins with; else the file."""
    if named := _LINE.match(finding.message):
        return Where(path, int(named[1]), 1)
    head = _head(finding)
    if len(head) > 1:
        for i, line in enumerate(text.splitlines(), start=1):
            if re.search(rf"(^|\s){re.escape(head)}($|[\s=])", line):
                return Where(path, i, 1)
    return Where(path)
