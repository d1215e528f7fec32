"""The output of a demonstration: a screen with keys on a terminal, otherwise a line each second.

Both are drawn from a :class:`Picture`, the complete state at one moment.
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
"""Verbs by the keyboard key that requests them."""
_UNDOING_VERBS: Final = ("thaw", "heal", "start")
"""Verbs that act on the target of the previous action unless a number is selected. A node that was
killed as the owner is not the owner any more, so the role cannot select it."""
_ACTIONS_SHOWN: Final = 6
"""Maximum number of actions on the screen."""
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
"""Colours of the states of processes; other states are red."""


class ProcessLine(Struct, frozen=True):
    """The state of one process."""

    name: str
    condition: str
    where: str


class ExecutedAction(Struct, frozen=True):
    """An executed action, and the longest pause of acknowledgements until the next action."""

    at_s: float
    what: str
    pause_s: float


class Picture(Struct, frozen=True, kw_only=True):
    """The complete state of a demonstration at one moment."""

    at_s: float
    """Seconds since the first acknowledgement."""
    url: str
    """The URL for clients."""
    console: str
    """The URL for browsers; empty if no node is the owner."""
    settings: str
    """A settings file for commands that inspect the cluster."""
    owner: str
    """Empty if no node is the owner."""
    epoch: int
    nodes: Sequence[ProcessLine]
    servers: Sequence[ProcessLine]
    """The servers of the engine."""
    acknowledgements_per_s: int
    waiting_s: float
    """Time since the last acknowledgement."""
    published: int
    delivered: int
    outstanding: int
    """Events acknowledged to the publisher but not delivered yet."""
    lost: int
    """Events acknowledged to the publisher that the consumer will not receive."""
    twice: int
    """Events stored twice, or delivered again after their acknowledgement."""
    executed_actions: Sequence[ExecutedAction] = ()
    """The executed actions, oldest first."""
    trouble: str = ""
    """The last error of a client that currently cannot proceed."""


class Chooser:
    """The target of the keys. Keys that undo an action on the owner or the leader act on the
    process that the action hit, even if it has lost that role."""

    def __init__(self) -> None:
        self.target = ProcessTarget("node")
        self.is_ended = False

    def press(self, key: str) -> Action | None:
        """Return the action of a key, or None. Digits select a node or a server, o the owner and l
        the engine's leader; q ends."""
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
            return Action(
                verb, None if verb in _UNDOING_VERBS and not self.target.number else self.target
            )
        return None

    @property
    def chosen(self) -> str:
        """The target as text."""
        if self.target.number:
            return f"{self.target.kind} {self.target.number}"
        return "the owner" if self.target.kind == "node" else "the engine's leader"


def line(picture: Picture) -> str:
    """Return the state as one line for programs and logs."""
    nodes = ", ".join(f"{process.name} {process.condition}" for process in picture.nodes)
    servers = ", ".join(f"{process.name} {process.condition}" for process in picture.servers)
    return plain(
        f"{picture.at_s:6.1f} s  owner {picture.owner or 'none'}, epoch {picture.epoch}; {nodes}; "
        f"{servers}; {picture.acknowledgements_per_s} acknowledgements/s, "
        f"{picture.waiting_s:.1f} s without one; {counts(picture)}"
    )


def counts(picture: Picture) -> str:
    """Return the counts of events as text."""
    return (
        f"published {picture.published:,}, delivered {picture.delivered:,}, "
        f"lost {picture.lost:,}, twice {picture.twice:,}"
    )


def action_line(executed: ExecutedAction) -> str:
    """Return an executed action as one line."""
    return plain(
        f"{executed.at_s:6.1f} s  {executed.what}: {executed.pause_s:.1f} s without "
        "acknowledgements at most"
    )


def render(picture: Picture, chosen: str) -> Group:
    """Return the screen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Table | Text] = [_head(picture), Text(), _processes(picture), Text()]
    parts += [
        Text(action_line(executed)) for executed in picture.executed_actions[-_ACTIONS_SHOWN:]
    ]
    if picture.trouble:
        parts.append(Text(plain(picture.trouble), style="yellow"))
    keys = (
        f"\nk kills, f freezes, c cuts off {chosen}; t thaws, h heals, s restarts it; "
        "1-3 choose a node, 4-6 an engine, o the owner, l the engine that leads; q ends"
    )
    return Group(*parts, Text(keys, style="dim"))


def _head(picture: Picture) -> Table:
    """Return the counts, and the addresses below them."""
    from rich.table import Table
    from rich.text import Text

    count_style = "bold red" if picture.lost or picture.twice else "bold green"
    head = Table.grid(padding=(0, 3))
    head.add_row(
        Text(f"owner {picture.owner or 'none'}", style="bold"),
        f"epoch {picture.epoch}",
        f"{picture.acknowledgements_per_s:,} acknowledgements/s",
        f"{picture.waiting_s:.1f} s without one",
    )
    head.add_row(
        f"published {picture.published:,}",
        f"delivered {picture.delivered:,}",
        Text(f"lost {picture.lost:,}", style=count_style),
        Text(f"twice {picture.twice:,}", style=count_style),
    )
    addresses = Table.grid(padding=(0, 3))
    addresses.add_row("for programs", picture.url)
    addresses.add_row("console", picture.console or "none while no node is the owner")
    addresses.add_row("inspect it", f"penstock cluster status --settings {picture.settings}")
    layout = Table.grid()
    layout.add_row(head)
    layout.add_row(addresses)
    return layout


def _processes(picture: Picture) -> Table:
    """Return the table of all processes. Its first column has the keys that select a process."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold reverse", expand=True)
    for name in ("", "process", "state", "where"):
        table.add_column(name, no_wrap=True)
    for key, process in enumerate((*picture.nodes, *picture.servers), 1):
        state = Text(process.condition, style=_COLOURS.get(process.condition, "red"))
        table.add_row(f"{key}", process.name, state, process.where)
    return table
