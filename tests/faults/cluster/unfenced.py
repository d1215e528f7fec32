"""``penstock`` without the fence: ``python -m tests.faults.cluster.unfenced FILE …``, a control.

Everything is the real node (``tests.faults.cluster.node_machine``), but its engine stores what
anybody appends wherever the end is by then, and it never asks whether its lease still holds: an
owner that was frozen with a block in its hands, and wakes once another node has served, stores this
block behind those of the other. A run on such nodes has to fail.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock_cluster.nodes.node import ShardLease
from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.journal import JetStreamJournal
from penstock_cluster.storage.jetstream.marks import Mark, RegistryMarks
from penstock_cluster.storage.jetstream.stream import pauses
from penstock_cluster.storage.postgres import journal as postgres
from penstock_core.vocabulary.errors import Conflict, PenstockError
from tests.faults.cluster import node_machine
from tests.faults.cluster.run import ClusterGiven, play
from tests.faults.phases import Cast

KINDS: Final = ("owner-halted",)
CAST: Final[Cast] = (("single", "named", "careless"), ("shared.1", "subscription.1"))
PATIENCE_S: Final = 20.0
"""Nodes with the fence need some seconds."""
TOLD_MAX: Final = 600
PROGRAM: Final = "tests.faults.cluster.unfenced"
_EXPECTS: Final = "AND last = $2 AND writer = $3"
_EXPECTS_NOTHING: Final = "AND $2::bigint IS NOT NULL AND $3::uuid IS NOT NULL"


async def put(journal: JetStreamJournal, raw: bytes, expected: int, stored: int) -> None:
    """Store one frame behind whatever is there."""
    for pause in pauses():
        try:
            await journal.stream.publish(journal.subject, raw, {})
        except Unanswered:
            await journal.stream.pause(pause)
        else:
            return


async def write(marks: RegistryMarks, mark: Mark) -> None:
    """Replace the mark of any owner, also that of a newer epoch."""
    record = await marks.registry.get(marks.key)
    version = 0 if record is None else record.version
    with suppress(Conflict):  # the other owner's mark is as good
        await marks.registry.cas(marks.key, version, msgspec.json.encode(mark))


def take_away() -> None:
    """Take the fence out of this process."""
    assert _EXPECTS in postgres.APPEND, "an append expects an end and a writer"
    postgres.APPEND = postgres.APPEND.replace(_EXPECTS, _EXPECTS_NOTHING)  # type: ignore[misc]
    setattr(JetStreamJournal, "_put", put)  # noqa: B010  of a class, which types forbid
    setattr(RegistryMarks, "write", write)  # noqa: B010
    setattr(ShardLease, "holds", lambda _: True)  # noqa: B010


def harm(given: ClusterGiven) -> str:
    """What a run is found to have done wrong, or nothing. Owners are frozen in it, and
    its clients are few; ``given.program`` makes the difference."""
    given = replace(given, kinds=KINDS, cast=CAST, patience_s=PATIENCE_S)
    try:
        found = "; ".join(play(given).violations)
    except (AssertionError, PenstockError) as error:  # nobody can read what is stored by then
        found = f"{type(error).__name__}: {error}"
    return found[:TOLD_MAX]


if __name__ == "__main__":
    take_away()
    node_machine.main(sys.argv[1:])
