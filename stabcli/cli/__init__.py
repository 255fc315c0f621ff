"""Command line: read the arguments, call one function, print, end. Nothing is computed here.

A command is a file ``cli/<name>.py`` holding one function of that name; its docstring is its
help, and it returns its exit status. Whatever is slow to import is imported inside it, so
that ``--help`` is instant.
"""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Annotated

import typer

from stabcli import __version__
from stabcli.cli._output import complain, detach
from stabcli.errors import StabError

FINE, FOUND, CANNOT_JUDGE, BUG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 130, 141
"""Exit statuses. A crash must never look like a verdict, nor a verdict like a crash."""

COMMANDS = (
    "scan",
    "check",
    "cost-report",
    "compare",
    "compare-presets",
    "audit",
    "replay-batch",
    "demo",
    "export",
    "rules",
    "formats",
    "explain",
    "schema",
)
"""The commands, in the order in which ``--help`` shows them."""

UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
"""What a full disk or a broken device answers when a report is written to it."""
NEW_ISSUE = "please report it, with the traceback above and the command you typed"


def _version(value: bool) -> None:
    if value:
        print(f"stabcli {__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="stabcli",
        add_completion=False,
        rich_markup_mode=None,  # rich help costs more time than all the rest of --help
        pretty_exceptions_enable=False,
        help="Post-mortems of training runs: what went wrong, at which step, what it cost,"
        " and where to roll back to.",
    )

    @app.callback()
    def _options(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
        ] = False,
    ) -> None:
        del version

    for name in COMMANDS:
        module = importlib.import_module(f"stabcli.cli.{name.replace('-', '_')}")
        app.command(name)(getattr(module, name.replace("-", "_")))
    return app


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit status; every error ends here."""
    if sys.stdout is None:
        complain("standard output is closed: nothing can be shown: open it, or send it to a file")
        return CANNOT_JUDGE
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character is no error
            stream.reconfigure(errors="replace")
    try:
        status = make_app()(arguments or ["--help"], prog_name="stabcli", standalone_mode=False)
        sys.stdout.flush()
    except StabError as error:
        complain(str(error))
        return CANNOT_JUDGE
    except BrokenPipeError:
        detach()
        return PIPE_CLOSED
    except SystemExit:  # the command-line library met a closed pipe while printing help
        detach()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in UNWRITABLE:
            return _bug(error)
        detach()
        complain(f"standard output cannot be written: {error.strerror}: send it elsewhere")
        return CANNOT_JUDGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message"):  # how the command-line library says: wrong usage
            complain(_usage(error, arguments))
            return CANNOT_JUDGE
        return _bug(error)
    if not arguments:
        return CANNOT_JUDGE
    return status if isinstance(status, int) else FINE


def _bug(error: Exception) -> int:
    """Show where stabcli broke, and ask for it to be told; a crash is never a verdict."""
    import traceback

    traceback.print_exception(error)
    complain(f"{type(error).__name__}: this is a bug in stabcli {__version__}: {NEW_ISSUE}")
    return BUG


def _usage(error: Exception, arguments: list[str]) -> str:
    """Say in one line what is wrong with the command typed, and where to look."""
    message = str(error.format_message()).strip().rstrip(".")  # type: ignore[attr-defined]
    command = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    return f"{message}: see stabcli {command + ' ' if command else ''}--help"
