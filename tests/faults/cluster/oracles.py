"""Checks for a cluster, in addition to those for every realm: pure functions of the logs of its
nodes and the records of its clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from tests.faults.checking import Violations, some
from tests.faults.cluster.pauses import Pauses
from tests.faults.journals import Published, Received

Log = Sequence[Mapping[str, Any]]
"""Log entries of a node since one start."""


class DamagedCopy(NamedTuple):
    """A replica with a damaged file, and the consequences."""

    server: str
    stream: str
    file: str
    is_reported: bool
    """Whether a node reported the damage, with server and stream."""
    is_gone: bool = False
    """Whether the damage disappeared before a node read it: the file was trimmed, or repaired by
    the server."""


def check_confirmed(name: str, lines: Iterable[Received], violations: Violations) -> int:
    """Check that events with a confirmed acknowledgement are not delivered again after a change of
    owners. Events that a consumer reads late from its own buffer, of an ended connection, do not
    count. Return the number of confirmed events."""
    confirmed: set[int] = set()
    repeated: dict[str, set[int]] = {}
    """The confirmed ids in the last delivery to each consumer."""
    wrong_ids: set[int] = set()
    consumers: set[str] = set()
    for line in lines:
        if line.what == "stale":
            repeated.pop(line.consumer, None)
            continue
        if ids := repeated.pop(line.consumer, set()):
            wrong_ids |= ids
            consumers.add(line.consumer)
        if line.what == "acked":
            confirmed.update(line.ids)
        elif line.what == "got":
            repeated[line.consumer] = confirmed.intersection(line.ids)
    for consumer, ids in repeated.items():
        if ids:
            wrong_ids |= ids
            consumers.add(consumer)
    if wrong_ids:
        violations.append(
            f"{name}: {some(sorted(consumers))} got what was confirmed: {some(sorted(wrong_ids))}"
        )
    return len(confirmed)


def check_owners(logs: Mapping[str, Sequence[Log]], violations: Violations) -> int:
    """Check that each epoch of a shard has one owner, and that the epochs of each node's process
    rise. ``logs``: by node, a log for each start. Return the number of takeovers."""
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
                    violations.append(
                        f"{node} claimed epoch {epoch} of shard {shard} behind a newer"
                    )
                newest[shard] = max(newest[shard], epoch)
    for (shard, epoch), names in sorted(owners.items()):
        if len(names) > 1:
            violations.append(f"epoch {epoch} of shard {shard} had owners {some(sorted(names))}")
    return max(0, len(owners) - 1)


class CutOff(NamedTuple):
    """A cut between clients and the owner, which still served the nodes. It lasted until the
    publishers had had the time to go another way."""

    owner: str
    waited_s: float
    late: tuple[str, ...]
    """Publishers without an acknowledgement during the cut."""


def check_relayed(cuts: Iterable[CutOff], violations: Violations) -> None:
    """Check that clients that could not reach the owner were relayed by another node."""
    for cut in cuts:
        if cut.late:
            violations.append(
                f"{cut.waited_s:g} s after clients were cut off from {cut.owner}, nobody had "
                f"relayed {some(sorted(cut.late))}"
            )


class DifferingNode(Struct, frozen=True):
    """A node that was started so that it must not own the realm, while the owner was killed; or a
    process that must not start at all."""

    node: str
    how: str
    cause: str
    """The text that the node and ``penstock cluster doctor`` have to name."""
    is_reported: bool
    """Whether the node named it, in its log or as the reason for its end."""
    is_diagnosed: bool
    """Whether ``penstock cluster doctor`` named it."""
    has_claimed: bool
    """Whether it claimed the shard anyway."""
    harmed: str = ""
    """Harm to a node that had to continue; "" if it continued."""


def check_differing(seen: Iterable[DifferingNode], violations: Violations) -> None:
    """Check that a node that differs never owns the realm, and that its log and the doctor name the
    reason."""
    for node in seen:
        what = f"{node.node}, {node.how}"
        if node.has_claimed:
            violations.append(f"{what}, claimed the realm")
        if not node.is_reported:
            violations.append(f"{what}, does not say that it is because of {node.cause}")
        if not node.is_diagnosed:
            violations.append(f"{what}: penstock cluster doctor does not name {node.cause}")
        if node.harmed:
            violations.append(f"{what}: {node.harmed}")


class FullServers(Struct, frozen=True):
    """Servers of the engine that were full for a while."""

    servers: tuple[str, ...]
    is_majority: bool
    is_diagnosed: bool
    """Whether ``penstock cluster doctor`` reported the lack of room, with the servers."""
    refused: str
    """Reason why a publish was refused during the fault; "" if none was."""


def check_filled(filled: Iterable[FullServers], violations: Violations) -> None:
    """Check that events are refused only if a majority is full, and because of the room."""
    for full in filled:
        names = some(full.servers)
        if not full.is_diagnosed:
            violations.append(f"{names} full: penstock cluster doctor does not say so")
        if full.is_majority and "room" not in full.refused:
            violations.append(
                f"{names} full: nothing was refused for want of room: {full.refused!r}"
            )
        if not full.is_majority and full.refused:
            violations.append(f"{names} full, and others have room: refused with {full.refused!r}")


def check_damage_reported(damaged: Iterable[DamagedCopy], violations: Violations) -> None:
    """Check that every damage to a leading replica was reported."""
    for copy in damaged:
        if not copy.is_reported and not copy.is_gone:
            violations.append(
                f"nobody told that {copy.file} of {copy.stream} on {copy.server} is damaged"
            )


def check_played(rows: Iterable[Pauses], violations: Violations) -> None:
    """Check that every planned fault was played, because a shorter run would prove nothing."""
    for row in rows:
        if row.times < row.least:
            violations.append(f"{row.what} was played {row.times} times, not {row.least}")


def check_not_stopped(publishers: Iterable[Published], violations: Violations) -> None:
    """Check that no publisher was told that the realm stops (SEM N4): another node serves, or the
    same one again, and answers the open requests."""
    for published in publishers:
        if published.stopped:
            violations.append(
                f"{published.name} was told {published.stopped} times that the realm stops"
            )


def check_work(acknowledged: Mapping[str, Sequence[int]], violations: Violations) -> None:
    """Check that every publisher had acknowledgements, because otherwise nothing could have been
    lost."""
    idle = [name for name, times in acknowledged.items() if not times]
    if idle:
        violations.append(f"nothing was acknowledged to {some(sorted(idle))}")
