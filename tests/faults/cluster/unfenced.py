"""``penstock`` without the fence: ``python -m tests.faults.cluster.unfenced FILE …``, a control.
The node is the real one (``tests.faults.cluster.node_machine``), but its engine appends at the
current end without a comparison, and its lease always holds: an owner that was frozen before it
sent a block, and wakes once another node has served, appends this block after the blocks of the
other node. A run on such nodes has to fail."""

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
from tests.faults.cluster.run import ClusterSettings, play
from tests.faults.phases import Cast

KINDS: Final = ("owner-halted",)
CAST: Final[Cast] = (("single", "named", "careless"), ("shared.1", "subscription.1"))
PATIENCE_S: Final = 20.0
"""Nodes with the fence need only some seconds."""
REASON_LENGTH_MAX: Final = 600
PROGRAM: Final = "tests.faults.cluster.unfenced"
_EXPECTS: Final = "AND last = $2 AND writer = $3"
_EXPECTS_NOTHING: Final = "AND $2::bigint IS NOT NULL AND $3::uuid IS NOT NULL"


async def put(journal: JetStreamJournal, raw: bytes, expected: int, stored: int) -> None:
    """Store a frame at the current end."""
    for pause in pauses():
        try:
            await journal.stream.publish(journal.subject, raw, {})
        except Unanswered:
            await journal.stream.pause(pause)
        else:
            return


async def write(marks: RegistryMarks, mark: Mark) -> None:
    """Replace the mark of any owner, even of a newer epoch."""
    record = await marks.registry.get(marks.key)
    version = 0 if record is None else record.version
    with suppress(Conflict):  # the mark of the other owner serves the same purpose
        await marks.registry.cas(marks.key, version, msgspec.json.encode(mark))


def remove_fence() -> None:
    """Remove the fence from this process."""
    assert _EXPECTS in postgres.APPEND, "an append expects an end and a writer"
    postgres.APPEND = postgres.APPEND.replace(_EXPECTS, _EXPECTS_NOTHING)  # type: ignore[misc]
    # type checkers reject an assignment to a method
    setattr(JetStreamJournal, "_put", put)  # noqa: B010
    setattr(RegistryMarks, "write", write)  # noqa: B010
    setattr(ShardLease, "holds", lambda _: True)  # noqa: B010


def harm(settings: ClusterSettings) -> str:
    """Run a loop that freezes owners, with few clients. Return its violations, or "".
    ``settings.program`` decides whether the nodes have the fence."""
    settings = replace(settings, kinds=KINDS, cast=CAST, patience_s=PATIENCE_S)
    try:
        harm_ = "; ".join(play(settings).violations)
    except (AssertionError, PenstockError) as error:  # the stored state can no longer be read
        harm_ = f"{type(error).__name__}: {error}"
    return harm_[:REASON_LENGTH_MAX]


if __name__ == "__main__":
    remove_fence()
    node_machine.main(sys.argv[1:])
