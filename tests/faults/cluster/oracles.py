"""What must hold of a cluster besides what must hold of any realm: pure functions of what its nodes
logged and its consumers wrote down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from tests.faults.checking import Violations, some
from tests.faults.cluster.pauses import Pauses
from tests.faults.journals import Published, Received

Log = Sequence[Mapping[str, Any]]
"""What a node logged in one life, entry by entry."""


class Spoilt(NamedTuple):
    """A replica whose file was damaged, and what became of it."""

    server: str
    stream: str
    file: str
    told: bool
    """Whether a node said so, naming server and stream."""
    is_gone: bool = False
    """Whether the damage was gone before anybody read it: trimmed, or mended by the server."""


def check_confirmed(name: str, lines: Iterable[Received], wrong: Violations) -> int:
    """What one consumer's acknowledgement has settled comes to nobody again, whoever owns the shard
    by then. What a consumer finds late in its own memory, of a connection that has ended, does not
    count. Gives how many events were confirmed."""
    confirmed: set[int] = set()
    again: dict[str, set[int]] = {}
    """By consumer, in what it got last."""
    wrongly: set[int] = set()
    by: set[str] = set()
    for line in lines:
        if line.what == "stale":
            again.pop(line.by, None)
            continue
        if found := again.pop(line.by, set()):
            wrongly |= found
            by.add(line.by)
        if line.what == "acked":
            confirmed.update(line.ids)
        elif line.what == "got":
            again[line.by] = confirmed.intersection(line.ids)
    for consumer, found in again.items():
        if found:
            wrongly |= found
            by.add(consumer)
    if wrongly:
        wrong.append(f"{name}: {some(sorted(by))} got what was confirmed: {some(sorted(wrongly))}")
    return len(confirmed)


def check_owners(logs: Mapping[str, Sequence[Log]], wrong: Violations) -> int:
    """Each epoch of a shard has one owner, and each life of a node goes up. ``logs``: lives by
    node. Gives how often a shard was served by another life than before."""
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for node, lives in logs.items():
        for number, log in enumerate(lives, 1):
            newest: dict[int, int] = defaultdict(int)
            for entry in log:
                if entry.get("event") != "shard.claimed":
                    continue
                shard, epoch = int(entry["shard"]), int(entry["epoch"])
                owners[shard, epoch].add(f"{node} in its life {number}")
                if epoch <= newest[shard]:
                    wrong.append(f"{node} claimed epoch {epoch} of shard {shard} behind a newer")
                newest[shard] = max(newest[shard], epoch)
    for (shard, epoch), names in sorted(owners.items()):
        if len(names) > 1:
            wrong.append(f"epoch {epoch} of shard {shard} had owners {some(sorted(names))}")
    return max(0, len(owners) - 1)


class CutOff(NamedTuple):
    """Clients were cut off from the owner, which went on serving others, and were not healed before
    they had been given the time for another way."""

    owner: str
    waited_s: float
    late: tuple[str, ...]
    """The publishers to whom nothing was acknowledged meanwhile."""


def check_relayed(cuts: Iterable[CutOff], wrong: Violations) -> None:
    """Whoever does not reach the owner is relayed by another node."""
    for each in cuts:
        if each.late:
            wrong.append(
                f"{each.waited_s:g} s after clients were cut off from {each.owner}, nobody had "
                f"relayed {some(sorted(each.late))}"
            )


class Differing(Struct, frozen=True):
    """A node that was started so that it must not own, while the owner was killed; or a process
    that must not start at all."""

    node: str
    how: str
    named: str
    """What the node and ``penstock cluster doctor`` have to name."""
    is_told: bool
    """Whether the node named it, in its log or as the reason why it did not start."""
    is_examined: bool
    """Whether ``penstock cluster doctor`` named it."""
    has_claimed: bool
    """Whether it claimed the shard all the same."""
    harmed: str = ""
    """What became of a node that was to go on as before; empty: it did."""


def check_differing(seen: Iterable[Differing], wrong: Violations) -> None:
    """A node that differs never owns, and says why; so does the doctor."""
    for each in seen:
        what = f"{each.node}, {each.how}"
        if each.has_claimed:
            wrong.append(f"{what}, claimed the realm")
        if not each.is_told:
            wrong.append(f"{what}, does not say that it is because of {each.named}")
        if not each.is_examined:
            wrong.append(f"{what}: penstock cluster doctor does not name {each.named}")
        if each.harmed:
            wrong.append(f"{what}: {each.harmed}")


class Filled(Struct, frozen=True):
    """Servers of the engine that were full for a while."""

    servers: tuple[str, ...]
    is_majority: bool
    is_examined: bool
    """Whether ``penstock cluster doctor`` told that there is no room, and where."""
    refused: str
    """Why a publish was refused meanwhile; empty: none was."""


def check_filled(filled: Iterable[Filled], wrong: Violations) -> None:
    """As long as a majority has room nothing is refused; otherwise the reason is the room."""
    for each in filled:
        names = some(each.servers)
        if not each.is_examined:
            wrong.append(f"{names} full: penstock cluster doctor does not say so")
        if each.is_majority and "room" not in each.refused:
            wrong.append(f"{names} full: nothing was refused for want of room: {each.refused!r}")
        if not each.is_majority and each.refused:
            wrong.append(f"{names} full, and others have room: refused with {each.refused!r}")


def check_told(spoilt: Iterable[Spoilt], wrong: Violations) -> None:
    """No damage of a replica that leads stays unsaid."""
    for each in spoilt:
        if not each.told and not each.is_gone:
            wrong.append(
                f"nobody told that {each.file} of {each.stream} on {each.server} is damaged"
            )


def check_played(rows: Iterable[Pauses], wrong: Violations) -> None:
    """All that had to be played was played: a run of less would show nothing."""
    for row in rows:
        if row.times < row.least:
            wrong.append(f"{row.what} was played {row.times} times, not {row.least}")


def check_not_stopped(publishers: Iterable[Published], wrong: Violations) -> None:
    """No publisher is told that the realm stops (SEM N4): another node serves, or the same one
    again, and what was not answered is asked of it."""
    for published in publishers:
        if published.stopped:
            wrong.append(
                f"{published.name} was told {published.stopped} times that the realm stops"
            )


def check_work(acknowledged: Mapping[str, Sequence[int]], wrong: Violations) -> None:
    """Every publisher had something acknowledged: otherwise nothing could have been lost."""
    idle = [name for name, times in acknowledged.items() if not times]
    if idle:
        wrong.append(f"nothing was acknowledged to {some(sorted(idle))}")
