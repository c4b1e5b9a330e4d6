"""The application: its commands, and what every way of ending becomes on stderr and as an exit code.

A command imports what it needs inside its function, so that ``servegen --help`` costs no more than Typer itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from servegen import __version__
from servegen.cli import build, calibrate, catalog, estimate, init, plan, schema, simulate, validate
from servegen.cli.streams import OutputError
from servegen.errors import InfeasibleError, UserError

BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports of a program that the signal ended
INTERRUPTED = 130  # 128 + SIGINT

app = typer.Typer(
    name="servegen",
    help="Compile a serving spec (model, latency targets, traffic, hardware) into a solved plan and its deployment.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

for name, command in (
    ("init", init.init),
    ("validate", validate.validate),
    ("estimate", estimate.estimate),
    ("plan", plan.plan),
    ("build", build.build),
    ("simulate", simulate.simulate),
    ("calibrate", calibrate.calibrate),
):
    app.command(name)(command)
app.add_typer(catalog.app, name="catalog")
app.command("schema")(schema.schema)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"servegen {__version__}")
        raise typer.Exit()


@app.callback()
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
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="servegen", standalone_mode=False)
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
