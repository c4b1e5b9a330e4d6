"""The application: its commands, and what every way of ending becomes on stderr and as an exit code.

A command imports what it needs inside its function, so that ``servegen --help`` costs no more than Typer itself; and where
the command line begins with a command, the others are neither imported nor registered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from servegen import __version__
from servegen.cli.streams import OutputError
from servegen.errors import InfeasibleError, UserError

BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports of a program that the signal ended
INTERRUPTED = 130  # 128 + SIGINT

#: In the order of the help. Each is a module beside this one that has a function of its name, or an application of its own.
COMMANDS = ("init", "validate", "estimate", "plan", "build", "simulate", "calibrate", "schema", "catalog")


def application(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The application with these commands. Typer inspects all that it is given before it looks at the command line."""
    app = typer.Typer(
        name="servegen",
        help="Compile a serving spec (model, latency targets, traffic, hardware) into a solved plan and its deployment.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name in names:
        module = import_module(f"servegen.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"servegen {__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Every command takes --help."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code and never raises for what a user or the machine did.

    0 done, 1 an error (usage included), 2 stale, 3 infeasible, 130 interrupted, 141 nobody reads the output any more.
    """
    # Without a command in front it takes all of them to say what is wrong, or to list them.
    names = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    try:
        code = typer.main.get_command(application(names)).main(list(arguments), prog_name="servegen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return _ended(error)


def _ended(error: BaseException) -> int:
    """Say what ended the command, once and without a traceback; returns the exit code."""
    if isinstance(error, SystemExit):  # Typer's answer to a broken pipe
        return _hang_up()
    if isinstance(error, BrokenPipeError):
        return _hang_up()
    if isinstance(error, OutputError):
        print(f"servegen: cannot write standard output: {error.strerror}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 : the interpreter flushes it at its end
        return 1
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        print("servegen: interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, typer.Abort):
        print("servegen: aborted", file=sys.stderr)
        return 1
    if isinstance(error, (UserError, InfeasibleError)):
        from servegen.cli.common import tell

        tell(error)
        return error.exit_code
    show = getattr(error, "show", None)
    if show is not None:  # a usage error of Typer
        show()
        return 1
    if os.environ.get("SERVEGEN_DEBUG") == "1":
        raise error
    message = " ".join(str(error).split())[:200]
    print(
        f"servegen: this is a bug in servegen, not in your spec: {type(error).__name__}: {message}\n"
        "  run it again with SERVEGEN_DEBUG=1 and report what that shows",
        file=sys.stderr,
    )
    return 1


def _hang_up() -> int:
    """Point stdout nowhere, so that the interpreter's last flush stays quiet."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a stdout without a file behind it needs no flush
        return BROKEN_PIPE
    return BROKEN_PIPE
