"""``penstock cluster demo``: a cluster on this machine, shown on a screen or as lines."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_core.printable import plain
from penstock_server.cli.shared.output import note, write

if TYPE_CHECKING:
    from rich.live import Live

    from penstock_tools.demo.actions import Action
    from penstock_tools.demo.screen import Chooser, Picture

EVENTS_WRONG: Final = 1
"""Exit status if events were lost, duplicated or not delivered."""
_SCREEN_S: Final = 0.25
"""Seconds between two pictures on the screen."""
_LINE_S: Final = 1.0
"""Seconds between two lines."""
_KEYS_MAX: Final = 64
"""Maximum number of bytes of keyboard input in one read."""


def register(commands: typer.Typer) -> None:
    """Add the command of this module to ``commands``."""
    commands.command("demo")(demo)


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="End after this many seconds of traffic.")
    ] = None,
    script: Annotated[
        str,
        typer.Option(help="Timed actions, such as '5:kill owner,12:cut engine 1'."),
    ] = "",
) -> None:
    """Try a cluster on this machine: three NATS servers, three nodes, and traffic over them.

    All processes use free loopback ports and a temporary directory, and end with the
    demonstration. On a terminal, keys control them: k kills, f freezes and c cuts off the owner or
    the process selected by 1 to 6; t thaws, h heals and s restarts it; q ends. A process that is
    cut off keeps running without a network: a node loses its connections to the engine, an engine
    server loses all connections. Without a terminal, a line is printed each second. A script has
    kill, freeze, cut, thaw, heal or start, each with `owner`, `node 1`, `engine 1`,
    `engine leader`, or `last` for the previous target. Exit status: 1 if an acknowledged event was
    lost, was delivered twice or was not delivered by the end.

    \b
    Examples:
      penstock cluster demo
      penstock cluster demo --seconds 20 --script "5:cut owner,12:heal last"
    """
    from penstock_tools.demo.actions import script_of
    from penstock_tools.demo.run import run_demo
    from penstock_tools.demo.screen import action_line, counts

    timed = script_of(script)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with _screen() if is_terminal else _lines() as display:
        last = run_demo(display, timed, seconds)
    for executed in last.executed_actions:
        write(action_line(executed))
    write(counts(last))
    if last.outstanding:
        note(
            f"{last.outstanding:,} events were acknowledged but not delivered before the end: the "
            "cluster was not available then"
        )
    if last.lost or last.twice or last.outstanding:
        raise typer.Exit(EVENTS_WRONG)


class LineDisplay:
    """Prints a line each second, for programs and logs."""

    every_s = _LINE_S

    def show(self, picture: Picture) -> None:
        from penstock_tools.demo.screen import line

        write(line(picture))
        sys.stdout.flush()

    def show_message(self, text: str) -> None:
        write(text)
        sys.stdout.flush()

    def listen(self, act: Callable[[Action], None], end: Callable[[], None]) -> None:
        """Do nothing: a plain stream of lines reads no keys."""


class ScreenDisplay:
    """Redraws the whole terminal several times a second."""

    every_s = _SCREEN_S

    def __init__(self, live: Live, chooser: Chooser) -> None:
        self._live = live
        self._chooser = chooser

    def show(self, picture: Picture) -> None:
        from penstock_tools.demo.screen import render

        self._live.update(render(picture, self._chooser.chosen), refresh=True)

    def show_message(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text(plain(text)), refresh=True)

    def listen(self, act: Callable[[Action], None], end: Callable[[], None]) -> None:
        """Call ``act`` and ``end`` when keys are pressed."""
        import asyncio

        def read_keys() -> None:
            for key in os.read(terminal, _KEYS_MAX).decode(errors="replace"):
                action = self._chooser.press(key)
                if self._chooser.is_ended:
                    # Otherwise any other key would be a second request, which ends immediately.
                    self._chooser.is_ended = False
                    end()
                elif action is not None:
                    act(action)

        terminal = sys.stdin.fileno()
        asyncio.get_running_loop().add_reader(terminal, read_keys)


@contextmanager
def _lines() -> Iterator[LineDisplay]:
    """Yield a display of lines; nothing has to be restored when the block ends."""
    yield LineDisplay()


@contextmanager
def _screen() -> Iterator[ScreenDisplay]:
    """Open a full-screen display; the terminal is restored when the block ends."""
    from rich.live import Live

    from penstock_tools.demo.screen import Chooser

    terminal = sys.stdin.fileno()
    saved_settings = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        with Live(screen=True, auto_refresh=False) as live:
            yield ScreenDisplay(live, Chooser())
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved_settings)
