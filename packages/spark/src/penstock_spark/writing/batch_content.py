"""Identifies the content of a micro-batch by the end positions of its sources.

A query's id and the number of a micro-batch are not enough: a query that continues from an older
copy of its checkpoint reuses numbers for other events. Spark writes the positions to the checkpoint
before the micro-batch runs, and a repetition has the same positions, even with reordered rows.
A source of files has a counter for its position, which says nothing about the files; Spark keeps
their names and times in a log of the source, whose entry counts instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.vocabulary.errors import DifferentContent, PenstockError

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property with the id of the query that runs the present micro-batch."""

_HEAD_LINES: Final = 2
"""Lines to skip: the version of the log's format, and settings with the planning time."""
_CHARACTERS: Final = 24


def content_of(checkpoint: str, batch: int) -> str:
    """Return the identity of a micro-batch's content; empty if the checkpoint cannot be read."""
    entry = _read(checkpoint, f"offsets/{batch}") if checkpoint else None
    if entry is None:
        return ""
    positions = entry.split(b"\n", _HEAD_LINES)[-1].strip()
    digest = hashlib.sha256(positions)
    for source, position in enumerate(positions.splitlines()):
        if (number := _file_log_number(position)) is not None:
            names = f"sources/{source}/{number}", f"sources/{source}/{number}.compact"
            files = next(filter(None, (_read(checkpoint, name) for name in names)), b"")
            digest.update(files)
    return digest.hexdigest()[:_CHARACTERS]


@contextmanager
def explaining(query: str, number: int) -> Iterator[None]:
    """Add the remedy to the error for a micro-batch that is stored with other events."""
    try:
        yield
    except DifferentContent as error:
        raise DifferentContent(
            f"micro-batch {number} of {query} is stored with other events than it has now: its "
            "checkpoint is older than the target, most likely because a copy was restored. Nothing "
            "was stored or skipped. Continue with the newest checkpoint; if it is lost, start with "
            "a new checkpoint, at the position up to which the target has the "
            f"events ({error})"
        ) from error


def _file_log_number(position: bytes) -> int | None:
    """Return the number of the entry in the log of a source of files; None for other sources."""
    try:
        fields = json.loads(position)
    except ValueError:
        return None
    number = fields.get("logOffset") if isinstance(fields, dict) else None
    return number if type(number) is int else None


def _read(checkpoint: str, name: str) -> bytes | None:
    """Return a file of a checkpoint; None if it cannot be read."""
    from penstock_spark.writing.checkpoint_folder import folder_at

    try:
        return folder_at(checkpoint).read(name)
    except (OSError, ValueError, PenstockError):
        return None
