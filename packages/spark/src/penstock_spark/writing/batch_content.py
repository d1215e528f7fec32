"""What identifies the content of a micro-batch: the positions it reads up to.

A query's id and the number of a micro-batch do not: a query that goes on from an older copy of its
checkpoint gives used numbers to other events. The positions are in the checkpoint before the
micro-batch runs, and a repetition has the same ones, even if its rows come in another order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.vocabulary.errors import DifferentContent, PenstockError

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property in which Spark keeps the id of the query that a micro-batch belongs to."""

_HEAD_LINES: Final = 2
"""The version of the log's format, and settings with the time at which the batch was planned."""
_CHARACTERS: Final = 24


def content_of(checkpoint: str, batch: int) -> str:
    """The identity of a micro-batch's content; empty if this process cannot read the checkpoint."""
    entry = _entry(checkpoint, batch) if checkpoint else None
    if entry is None:
        return ""
    positions = entry.split(b"\n", _HEAD_LINES)[-1].strip()
    return hashlib.sha256(positions).hexdigest()[:_CHARACTERS]


@contextmanager
def explaining(query: str, number: int) -> Iterator[None]:
    """Add the remedy to the error for a micro-batch that is stored with other events."""
    try:
        yield
    except DifferentContent as error:
        raise DifferentContent(
            f"micro-batch {number} of {query} is stored with other events than it has now: its "
            "checkpoint is older than what it has written, most likely because a copy was "
            "restored. Nothing was stored or skipped. Go on with the newest checkpoint; if it is "
            "lost, start with a new checkpoint, at the position up to which the target has the "
            f"events ({error})"
        ) from error


def _entry(checkpoint: str, batch: int) -> bytes | None:
    """The entry of a micro-batch in Spark's log of offsets."""
    from penstock_spark.writing.checkpoint_folder import folder_at

    try:
        return folder_at(checkpoint).read(f"offsets/{batch}")
    except (OSError, ValueError, PenstockError):
        return None
