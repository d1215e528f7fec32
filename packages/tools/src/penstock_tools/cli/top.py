"""``penstock top``: shows the activity of a realm, live in the terminal."""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.printable import plain
from penstock_server.cli.shared.output import (
    ListFormat,
    duration,
    size,
    write_json,
    write_json_line,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from penstock_tools.cli.rates import DurableLine, RealmRates, StoreLine

_STORE_ORDERS: Final[dict[str, Callable[[StoreLine], Any]]] = {
    "published": lambda line: (-line.published_per_s, -line.left_per_s, line.name),
    "left": lambda line: (-line.left_per_s, -line.published_per_s, line.name),
    "events": lambda line: (-line.events, line.name),
    "size": lambda line: (-line.bytes, line.name),
    "name": lambda line: line.name,
}
"""Sort keys of the upper table, by name."""
KEYS: Final = {"p": "published", "l": "left", "e": "events", "b": "size", "n": "name"}
"""Keyboard keys that choose the order; q quits, space pauses the display."""

_NAME_MIN: Final = 8
"""Minimum width of a name in columns."""
_FIXED_LINES: Final = 8
"""Terminal lines needed for everything except the rows of the tables."""


class View:
    """The state of the screen, which keys change."""

    def __init__(self) -> None:
        self.order = "published"
        """Name of the sort key of the upper table."""
        self.is_paused = False
        self.is_ended = False

    def press(self, key: str) -> None:
        """Handle a key: q quits, space pauses the display, :data:`KEYS` choose the order; others
        are ignored."""
        if key in ("q", "\x03"):
            self.is_ended = True
        elif key == " ":
            self.is_paused = not self.is_paused
        else:
            self.order = KEYS.get(key, self.order)

    def render(self, rates: RealmRates, rows: int) -> Group:
        """Return the screen with as many rows as fit, sorted by the chosen order."""
        from rich.console import Group
        from rich.text import Text

        stores = sorted(rates.stores, key=_STORE_ORDERS[self.order])
        durables = sorted(rates.durables, key=lambda line: (-line.outstanding, line.channel))
        # Durables get at most a third of the screen, unless the stores leave more of it free.
        store_rows = max(3, rows - _FIXED_LINES - min(len(durables), rows // 3))
        durable_rows = max(2, rows - _FIXED_LINES - min(len(stores), store_rows))
        left_out = rates.left_out + max(0, len(stores) - store_rows)
        keys = "q quits  space pauses  sort: p published, l left, e events, b bytes, n name"
        more = f"  ({left_out} more not shown)" if left_out else ""
        return Group(
            _head(rates, is_paused=self.is_paused),
            _store_table(stores[:store_rows], self.order),
            _durable_table(durables[:durable_rows]),
            Text(keys + more, style="dim"),
        )


def register(app: typer.Typer) -> None:
    """Add the command of this module to ``app``."""
    app.command("top")(top)


def top(
    interval: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="Seconds between samples.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Watch a realm: rates by channel and durable, lag, connections, memory, disk.

    Keys: q quits, space pauses the display, p l e b n sort. JSON is one line for each sample.

    \b
    Examples:
      penstock top
      penstock top --once --format json
    """
    if not once and format == "table" and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("standard output is not a terminal; pass --once or --format json")
    from penstock_server.runtime.writer.clock import SystemClock
    from penstock_tools.cli.rates import Sampler, rates_between

    with session(url) as realm:
        sampler = Sampler(realm, SystemClock())
        last_sample = sampler.take_sample()

        def sample_rates(wait: Callable[[float], None]) -> RealmRates:
            nonlocal last_sample
            wait(interval)
            sample_before, last_sample = last_sample, sampler.take_sample()
            return rates_between(sample_before, last_sample)

        if format == "json":
            _write(sample_rates, once=once)
        elif once:
            _print(sample_rates(_pause))
        else:
            _live(sample_rates)


SampleRates = Callable[[Callable[[float], None]], "RealmRates"]
"""Waits with the function passed to it, and returns the rates up to the next sample."""


def _pause(seconds: float) -> None:
    """Wait without reading keys."""
    select.select([], [], [], seconds)


def _write(sample_rates: SampleRates, *, once: bool) -> None:
    """Print the rates as JSON, once or repeatedly."""
    if once:
        write_json(sample_rates(_pause))
        return
    while True:
        write_json_line(sample_rates(_pause))
        sys.stdout.flush()


def _print(rates: RealmRates) -> None:
    """Print the screen once as text."""
    from rich.console import Console

    # A file gets all rows, because its width and length are not limited by a screen.
    console = Console() if sys.stdout.isatty() else Console(width=160, color_system=None)
    console.print(View().render(rates, rows=10_000))


def _live(sample_rates: SampleRates) -> None:
    """Redraw the screen until the user presses q or Ctrl-C."""
    from rich.live import Live

    view = View()
    with _keys() as read_key, Live(screen=True, auto_refresh=False) as live:
        rates = sample_rates(_pause)
        while True:
            live.update(view.render(rates, live.console.height), refresh=True)
            key = ""

            def wait(seconds: float) -> None:
                nonlocal key
                key = read_key(seconds)

            # Samples are taken also while the display is paused, so that the rates cover one
            # interval when it continues.
            newer = sample_rates(wait)
            view.press(key)
            if view.is_ended:
                return
            rates = rates if view.is_paused else newer


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key; the terminal is restored at the end."""
    terminal = sys.stdin.fileno()
    saved_settings = termios.tcgetattr(terminal)

    def read_key(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    # In this mode the terminal delivers each key immediately and does not echo it.
    tty.setcbreak(terminal)
    try:
        yield read_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved_settings)


# --- tables -------------------------------------------------------------------------------


def _head(rates: RealmRates, *, is_paused: bool) -> Table:
    """Return the two lines about the whole realm."""
    from rich.table import Table

    head = Table.grid(padding=(0, 3))
    state = "publishing paused" if rates.publishing_paused else "publishing"
    head.add_row(
        _shortened(f"{rates.realm} {rates.version}", "bold"),
        f"{state}{', display paused' if is_paused else ''}",
        f"{rates.connections:,} connections",
    )
    head.add_row(
        f"in {_rate(rates.published_per_s)}/s, out {_rate(rates.left_per_s)}/s",
        f"memory {size(rates.memory_bytes)} of {size(rates.memory_bytes_max)}",
        f"journal {size(rates.journal_bytes)}, stored {size(rates.stored_bytes)}",
    )
    return head


def _store_table(lines: list[StoreLine], order: str) -> Table:
    """Return the upper table; a ``v`` marks the column that it is sorted by."""
    columns = (
        ("channel or queue", "name"),
        ("in/s", "published"),
        ("out/s", "left"),
        ("events", "events"),
        ("size", "size"),
        ("readers", ""),
        ("durables", ""),
    )
    table = _table([f"{heading} v" if key == order else heading for heading, key in columns])
    for line in lines:
        table.add_row(
            _shortened(line.name if line.kind == "channel" else f"{line.name} (queue)"),
            _rate(line.published_per_s),
            _rate(line.left_per_s),
            f"{line.events:,}",
            size(line.bytes),
            f"{line.subscribers:,}",
            f"{line.durables:,}",
        )
    return table


def _durable_table(lines: list[DurableLine]) -> Table:
    """Return the lower table."""
    names = ("durable", "type", "outstanding", "in flight", "oldest", "offered/s", "clients")
    table = _table(names)
    for line in lines:
        table.add_row(
            _shortened(f"{line.channel} / {line.name}"),
            line.type,
            f"{line.outstanding:,}",
            f"{line.in_flight:,}",
            "" if line.oldest_ms is None else duration(line.oldest_ms),
            _rate(line.offered_per_s),
            f"{line.clients:,}",
        )
    return table


def _table(names: Sequence[str]) -> Table:
    """Return an empty table with these columns."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold reverse", expand=True)
    for index, name in enumerate(names):
        is_text = index == 0 or name == "type"
        # Only names are shortened on a narrow terminal: a truncated number would be wrong.
        table.add_column(name, justify="left" if is_text else "right", no_wrap=index > 0)
    return table


def _shortened(name: str, style: str = "") -> Any:
    """Return a name that fits on one line. It is shortened in the middle, because its end is as
    significant as its start."""
    from rich.cells import cell_len, set_cell_size
    from rich.measure import Measurement
    from rich.text import Text

    text = plain(name)

    class Shortened:
        def __rich_measure__(self, console: Any, options: Any) -> Measurement:
            cells = cell_len(text)
            return Measurement(min(cells, _NAME_MIN), cells)

        def __rich_console__(self, console: Any, options: Any) -> Iterator[Text]:
            width = options.max_width
            shown = text
            if cell_len(text) > width:
                head = set_cell_size(text, width // 2).rstrip()
                tail = set_cell_size(text[::-1], max(0, width - cell_len(head) - 1))[::-1].lstrip()
                shown = f"{head}…{tail}"
            yield Text(shown, style=style, no_wrap=True)

    return Shortened()


def _rate(per_s: float) -> str:
    """Return a rate; small ones have a decimal, so that they do not look like 0."""
    return f"{per_s:,.0f}" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}"
