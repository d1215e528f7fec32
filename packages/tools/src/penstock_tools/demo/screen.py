"""What a demonstration shows: a screen with keys on a terminal, a line a second elsewhere.

Both are drawn from one :class:`Picture`, which has all there is to see at a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock_core.printable import plain
from penstock_tools.demo.actions import MEMBERS, Action, ProcessTarget, Verb

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_KEYS: Final[dict[str, Verb]] = {
    "k": "kill",
    "f": "freeze",
    "t": "thaw",
    "c": "cut",
    "h": "heal",
    "s": "start",
}
_MENDS: Final = ("thaw", "heal", "start")
"""What is done to whatever was acted on before, unless a number has chosen something else: who was
the owner, or has led, is no longer."""
_DEEDS_SHOWN: Final = 6
_COLOURS: Final = {
    "owner": "green",
    "leads": "green",
    "up": "",
    "stands by": "",
    "starts": "yellow",
    "frozen": "cyan",
    "cut off": "magenta",
    "deposed": "yellow",
}


class ProcessLine(Struct, frozen=True):
    """One process, and how it is."""

    name: str
    condition: str
    where: str


class Deed(Struct, frozen=True):
    """What was done, and the longest time without an acknowledgement since, until the next one."""

    at_s: float
    what: str
    pause_s: float


class Picture(Struct, frozen=True, kw_only=True):
    """All there is to see at a moment."""

    at_s: float
    """Since the first acknowledgement."""
    url: str
    """For programs."""
    console: str
    """For browsers; empty while there is no owner."""
    settings: str
    """A file for commands that look at the cluster."""
    owner: str
    """Empty while there is none."""
    epoch: int
    nodes: Sequence[ProcessLine]
    servers: Sequence[ProcessLine]
    """The servers of the engine."""
    a_second: int
    waiting_s: float
    """How long nothing was acknowledged, at this moment."""
    published: int
    delivered: int
    outstanding: int
    """Acknowledged to the publisher, and not delivered yet."""
    lost: int
    twice: int
    deeds: Sequence[Deed] = ()
    trouble: str = ""
    """What a client was told last that keeps it from going on."""


class Chooser:
    """Which process the keys act on; what was done to the owner, or to the server that leads, is
    mended where it was done."""

    def __init__(self) -> None:
        self.target = ProcessTarget("node")
        self.is_ended = False

    def press(self, key: str) -> Action | None:
        """What a key asks for. Digits choose a node or a server, o the owner, l the server that
        leads, and q ends."""
        if key in ("q", "\x03"):
            self.is_ended = True
        elif key == "o":
            self.target = ProcessTarget("node")
        elif key == "l":
            self.target = ProcessTarget("engine")
        elif key.isdecimal() and 1 <= int(key) <= MEMBERS:
            self.target = ProcessTarget("node", int(key))
        elif key.isdecimal() and MEMBERS < int(key) <= 2 * MEMBERS:
            self.target = ProcessTarget("engine", int(key) - MEMBERS)
        elif key in _KEYS:
            verb = _KEYS[key]
            return Action(verb, None if verb in _MENDS and not self.target.number else self.target)
        return None

    @property
    def chosen(self) -> str:
        if self.target.number:
            return f"{self.target.kind} {self.target.number}"
        return "the owner" if self.target.kind == "node" else "the engine's leader"


def line(picture: Picture) -> str:
    """One line for programs and logs."""
    nodes = ", ".join(f"{process.name} {process.condition}" for process in picture.nodes)
    servers = ", ".join(f"{process.name} {process.condition}" for process in picture.servers)
    return plain(
        f"{picture.at_s:6.1f} s  owner {picture.owner or 'none'}, epoch {picture.epoch}; {nodes}; "
        f"{servers}; {picture.a_second} acknowledgements/s, {picture.waiting_s:.1f} s without; "
        f"{counts(picture)}"
    )


def counts(picture: Picture) -> str:
    """What there is to be proud of."""
    return (
        f"published {picture.published:,}, delivered {picture.delivered:,}, "
        f"lost {picture.lost:,}, twice {picture.twice:,}"
    )


def deed_line(deed: Deed) -> str:
    return plain(
        f"{deed.at_s:6.1f} s  {deed.what}: {deed.pause_s:.1f} s without acknowledgements at most"
    )


def drawn(picture: Picture, chosen: str) -> Group:
    """The screen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Table | Text] = [_head(picture), Text(), _processes(picture), Text()]
    parts += [Text(deed_line(deed)) for deed in picture.deeds[-_DEEDS_SHOWN:]]
    if picture.trouble:
        parts.append(Text(plain(picture.trouble), style="yellow"))
    keys = (
        f"\nk kills, f freezes, c cuts off {chosen}; t thaws, h heals, s starts again; "
        "1-3 choose a node, 4-6 an engine, o the owner, l the engine that leads; q ends"
    )
    return Group(*parts, Text(keys, style="dim"))


def _head(picture: Picture) -> Table:
    from rich.table import Table
    from rich.text import Text

    wrong = "bold red" if picture.lost or picture.twice else "bold green"
    head = Table.grid(padding=(0, 3))
    head.add_row(
        Text(f"owner {picture.owner or 'none'}", style="bold"),
        f"epoch {picture.epoch}",
        f"{picture.a_second:,} acknowledgements/s",
        f"{picture.waiting_s:.1f} s without",
    )
    head.add_row(
        f"published {picture.published:,}",
        f"delivered {picture.delivered:,}",
        Text(f"lost {picture.lost:,}", style=wrong),
        Text(f"twice {picture.twice:,}", style=wrong),
    )
    addresses = Table.grid(padding=(0, 3))
    addresses.add_row("for programs", picture.url)
    addresses.add_row("console", picture.console or "when there is an owner")
    addresses.add_row("look at it", f"penstock cluster status --settings {picture.settings}")
    layout = Table.grid()
    layout.add_row(head)
    layout.add_row(addresses)
    return layout


def _processes(picture: Picture) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold reverse", expand=True)
    for name in ("", "process", "state", "where"):
        table.add_column(name, no_wrap=True)
    for key, process in enumerate((*picture.nodes, *picture.servers), 1):
        state = Text(process.condition, style=_COLOURS.get(process.condition, "red"))
        table.add_row(f"{key}", process.name, state, process.where)
    return table
