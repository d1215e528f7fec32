"""Identifies the content of a micro-batch by the end positions of its sources.

The id of a query and the number of a micro-batch are not enough: a query that continues from an
older copy of its checkpoint reuses numbers for other events. Spark writes the positions to the
checkpoint before the micro-batch runs, and a repetition has equal positions, even if its rows have
another order. The position of a source of files is only a counter; therefore the entry in the
source's log, which has the names and times of the files, identifies the content instead.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock_core.vocabulary.errors import DifferentContent, PenstockError
from penstock_core.vocabulary.uris import shown

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the query whose micro-batch is running."""


class UnknownContent(UserWarning):
    """The content of a micro-batch is unknown, so it cannot be compared with an earlier run."""


_HEAD_LINES: Final = 2
"""Number of lines before the positions in an entry of the log: the version of the format, and
settings with the planning time, which differs in a repetition."""
_CHARACTERS: Final = 24
"""Length of an identity, in hexadecimal characters."""


def content_of(checkpoint: str, batch: int) -> str:
    """Return the identity of the content of micro-batch ``batch``; empty if it is unknown.

    ``checkpoint`` is empty for a query without ``checkpointLocation``; its temporary checkpoint
    cannot be restored, so no identity is needed. Warns with :class:`UnknownContent` if the
    checkpoint cannot be read.
    """
    if not checkpoint:
        return ""
    entry = _read(checkpoint, f"offsets/{batch}")
    if entry is None:
        warnings.warn(
            f"the content of micro-batch {batch} of {shown(checkpoint)} is not known, so a "
            "checkpoint that was restored from an older copy is not noticed, and rows may be "
            "missing after it. Give the query a checkpointLocation that this process can read",
            UnknownContent,
            stacklevel=2,
        )
        return ""
    positions = entry.split(b"\n", _HEAD_LINES)[-1].strip()
    digest = hashlib.sha256(positions)
    for source, position in enumerate(positions.splitlines()):
        if (number := _file_log_number(position)) is not None:
            entry_names = f"sources/{source}/{number}", f"sources/{source}/{number}.compact"
            files = next(filter(None, (_read(checkpoint, name) for name in entry_names)), b"")
            digest.update(files)
    return digest.hexdigest()[:_CHARACTERS]


@contextmanager
def explaining(query: str, number: int) -> Iterator[None]:
    """Add the query, the cause and the remedy to the error for a micro-batch that is stored with
    other events."""
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
    """Return the number of the log entry that a position of a source of files refers to; None for
    other sources."""
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
