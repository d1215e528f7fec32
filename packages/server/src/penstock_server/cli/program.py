"""The Typer application of ``penstock``: its commands and its exit statuses."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer

from penstock_core.printable import on_one_line
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared.grouping import GROUP, CommandGroup
from penstock_server.cli.shared.output import note
from penstock_server.cli.shared.stopping import INTERRUPTED
from penstock_server.parts import install_line, registered

REFUSED: Final = 1
"""Exit status if the realm or this program refused the command; 0 is success, 2 wrong usage."""
_OUTPUT_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a file or device that accepts no more output."""


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Base class of Typer's exceptions for wrong usage of a command."""


MODULES: Final = {
    "serve": "serving.server",
    "channel": "stores.channels",
    "publish": "events.publishing",
    "subscribe": "events.reading",
    "browse": "events.reading",
    "durable": "durables.durables",
    "delivery": "durables.delivery",
    "queue": "queues.queues",
    "request": "events.requesting",
    "reply": "events.requesting",
    "join": "stores.joins",
    "schedule": "events.scheduling",
    "redrive": "events.redriving",
    "archive": "events.archiving",
    "selector": "events.selectors",
    "user": "access.access",
    "group": "access.access",
    "acl": "access.access",
    "audit": "access.access",
    "realm": "access.administration",
    "store": "stores.store",
    "info": "access.administration",
    "settings": "serving.reference",
    "health": "checks.health",
    "doctor": "checks.doctor",
    "error": "serving.reference",
}
"""Commands of this package with the module that registers each."""
ORDER: Final = (
    "serve",
    "channel",
    "publish",
    "subscribe",
    "browse",
    "durable",
    "delivery",
    "queue",
    "request",
    "reply",
    "join",
    "topic",
    "schedule",
    "redrive",
    "selector",
    "archive",
    "pipeline",
    "user",
    "group",
    "acl",
    "audit",
    "apply",
    "export",
    "topology",
    "bridge",
    "realm",
    "store",
    "cluster",
    "info",
    "settings",
    "top",
    "load",
    "health",
    "doctor",
    "error",
)
"""Commands of all packages of this project, in the order in which a newcomer needs them. Help
lists commands of other packages after these."""


def places() -> Mapping[str, str]:
    """Return the function that registers each command, as ``module:function``, in help order."""
    builtin = {name: f"penstock_server.cli.{module}:register" for name, module in MODULES.items()}
    parts = {name: part.place for name, part in registered(GROUP).items() if "." not in name}
    registrations = builtin | parts
    others = [name for name in registrations if name not in ORDER]
    return {name: registrations[name] for name in (*ORDER, *others) if name in registrations}


class CommandTable(Mapping[str, Any]):
    """Commands and command groups by name. Typer imports and builds each on access, because
    building all of them takes longer than most commands take to run."""

    def __getitem__(self, name: str) -> Any:
        return commands_of(places()[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(places())

    def __len__(self) -> int:
        return len(places())


@cache
def commands_of(place: str) -> Mapping[str, Any]:
    """Return the commands that the function at ``place`` (``module:function``) registers, by
    name."""
    module, _, function = place.partition(":")
    part = typer.Typer(add_completion=False, rich_markup_mode=None)
    part.callback()(_no_options)
    getattr(import_module(module), function)(part)
    group: Any = typer.main.get_command(part)
    return dict(group.commands)


def _no_options() -> None:
    """Do nothing. With a callback, Typer builds a group even from a single command."""


class Program(CommandGroup):
    """The top-level command group. It ends every command in the same way: one line for a refusal,
    no output for Ctrl-C or a closed pipe."""

    commands: Mapping[str, Any]  # type: ignore[assignment]  # never modified

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.commands = CommandTable()

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _plain_usage():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        with _plain_usage():
            return self._run_command(ctx)

    def _run_command(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except PenstockError as error:
            if _was_interrupted(error):
                raise typer.Exit(INTERRUPTED) from None
            # The code belongs to the first line; further lines quote the selector or the file.
            first, newline, rest = str(error).partition("\n")
            note(f"error: {first} [{error.code}]{newline}{rest}")
            raise typer.Exit(REFUSED) from None
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit from None
        except OSError as error:
            if error.errno not in _OUTPUT_FULL:
                raise
            _discard_output()
            note(f"error: the output could not be written: {error.strerror or error}")
            raise typer.Exit(REFUSED) from None
        return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in ORDER and args[0] not in self.commands:
            ctx.fail(f"the package with {args[0]!r} is not installed: {install_line(args[0])}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names only. Typer's own method would build every command."""
        return list(self.commands)


def _was_interrupted(error: BaseException) -> bool:
    """Return whether the error arose while Ctrl-C was ending the command. Closing a session in the
    middle of a request may raise an error that the user does not need to see."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause is not None


@contextmanager
def _plain_usage() -> Iterator[None]:
    """Escape control characters of arguments that messages about wrong usage repeat."""
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = on_one_line(error.message)
        raise


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="penstock",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        from penstock_core.version import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    url: Annotated[
        str | None, typer.Option("--url", help="URL of the realm, for any command.", metavar="URL")
    ] = None,
) -> None:
    """Penstock: a messaging server whose channels are Arrow tables.

    \b
    A first tour, in two terminals:
      penstock serve --data ./data
      penstock channel create orders
      penstock publish orders "hello" --property price=9.5
      penstock subscribe orders --from earliest

    Set the realm with --url, before the command or among its options, or with PENSTOCK_URL.
    """
    if url is not None:  # the --url option of each command defaults to this variable
        before = os.environ.get("PENSTOCK_URL")
        os.environ["PENSTOCK_URL"] = url
        context.call_on_close(lambda: _restore_variable("PENSTOCK_URL", before))


def _restore_variable(variable: str, value: str | None) -> None:
    """Set an environment variable to an earlier value; None removes it."""
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with 0 on success, 1 if refused, 2 for wrong usage, 130 after
    Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the encoding lacks: printing an event must not fail.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(args=arguments, prog_name="penstock")
