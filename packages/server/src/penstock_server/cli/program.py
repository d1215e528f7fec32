"""The program: its commands, and how it exits."""

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
from penstock_server.parts import install_line, registered

REFUSED: Final = 1
"""Exit status when the realm or this program refused; 0 is success, 2 is wrong usage."""
INTERRUPTED: Final = 130
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file or device that takes no more output."""


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""The exception for a command that is called wrongly."""


MODULES: Final = {
    "serve": "serving.server",
    "channel": "stores.channels",
    "publish": "events.publishing",
    "subscribe": "events.reading",
    "browse": "events.reading",
    "durable": "durables.durables",
    "queue": "queues.queues",
    "request": "events.requesting",
    "reply": "events.requesting",
    "join": "stores.joins",
    "schedule": "events.scheduling",
    "redrive": "events.redriving",
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
"""The module that has each command of this package."""
ORDER: Final = (
    "serve",
    "channel",
    "publish",
    "subscribe",
    "browse",
    "durable",
    "queue",
    "request",
    "reply",
    "join",
    "topic",
    "schedule",
    "redrive",
    "selector",
    "pipeline",
    "user",
    "group",
    "acl",
    "audit",
    "apply",
    "export",
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
"""Commands of all packages of this project, in the order in which a newcomer needs them; those of
others come last."""


def places() -> Mapping[str, str]:
    """The function that registers each command, as ``module:function``, in the order of help."""
    own = {name: f"penstock_server.cli.{module}:register" for name, module in MODULES.items()}
    parts = {name: part.place for name, part in registered(GROUP).items() if "." not in name}
    known = own | parts
    others = [name for name in known if name not in ORDER]
    return {name: known[name] for name in (*ORDER, *others) if name in known}


class CommandTable(Mapping[str, Any]):
    """Commands and groups of commands, each imported and built by Typer when it is asked for: all
    of them take longer than most need for their work."""

    def __getitem__(self, name: str) -> Any:
        return commands_of(places()[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(places())

    def __len__(self) -> int:
        return len(places())


@cache
def commands_of(place: str) -> Mapping[str, Any]:
    """The commands that a function, given as ``module:function``, registers, by name."""
    module, _, function = place.partition(":")
    part = typer.Typer(add_completion=False, rich_markup_mode=None)
    part.callback()(_no_options)
    getattr(import_module(module), function)(part)
    group: Any = typer.main.get_command(part)
    return dict(group.commands)


def _no_options() -> None:
    """With this, Typer makes a group also of a single command."""


class Program(CommandGroup):
    """Ends every command alike: a refusal in one line, Ctrl-C and a closed pipe silently."""

    commands: Mapping[str, Any]  # type: ignore[assignment]  # none is added to it

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.commands = CommandTable()

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _plain_usage():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        with _plain_usage():
            return self._invoked(ctx)

    def _invoked(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except PenstockError as error:
            if _was_interrupted(error):
                raise typer.Exit(INTERRUPTED) from None
            first, newline, rest = str(error).partition("\n")
            note(f"error: {first} [{error.code}]{newline}{rest}")
            raise typer.Exit(REFUSED) from None
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _forget_output()
            raise typer.Exit from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _forget_output()
            note(f"error: the output could not be written: {error.strerror or error}")
            raise typer.Exit(REFUSED) from None
        return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in ORDER and args[0] not in self.commands:
            ctx.fail(f"the package with {args[0]!r} is not installed: {install_line(args[0])}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names alone: Typer would look at each command, and so build all of them."""
        return list(self.commands)


def _was_interrupted(error: BaseException) -> bool:
    """Whether it came up while Ctrl-C was ending the command: a session that is closed in the
    middle of a request may complain, and nobody has asked for more."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause is not None


@contextmanager
def _plain_usage() -> Iterator[None]:
    """Escape the arguments that messages about wrong usage repeat."""
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = on_one_line(error.message)
        raise


def _forget_output() -> None:
    """Keep Python from flushing at exit, when the reader of our output is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="penstock",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
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
        str | None, typer.Option("--url", help="The realm, for any command.", metavar="URL")
    ] = None,
) -> None:
    """Penstock: a messaging server whose channels are Arrow tables.

    \b
    A first tour, in two terminals:
      penstock serve --data ./data
      penstock channel create orders
      penstock publish orders "hello" --property price=9.5
      penstock subscribe orders --from earliest

    A realm is named by --url, before the command or among its options, or by PENSTOCK_URL.
    """
    if url is not None:  # the options of the commands look there
        before = os.environ.get("PENSTOCK_URL")
        os.environ["PENSTOCK_URL"] = url
        context.call_on_close(lambda: _put_back("PENSTOCK_URL", before))


def _put_back(variable: str, value: str | None) -> None:
    """Give a variable of the environment the value that it had."""
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused, 2 wrong usage, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the encoding lacks are escaped: an event is shown, not refused.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(args=arguments, prog_name="penstock")
