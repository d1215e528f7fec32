"""The columns a query's state is made of, which are those of its first run for ever.

Spark refuses a state of other columns with words about its own files. So a step whose columns
follow those of its source writes them down, and says what is new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from pyarrow import fs

from penstock.core.vocabulary.errors import InvalidArgument

_FILE: Final = "columns.json"
_BEGUN: Final = "query/offsets"
"""Not empty when the query has begun with a micro-batch."""
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def remembered(checkpoint: str, columns: Mapping[str, str]) -> list[str]:
    """The columns in the order of the first run, which is kept in the folder of a step, with
    their types, once its query has begun.

    Raises ``InvalidArgument`` naming the columns that are others now, and what can be done.
    """
    known = _read(checkpoint)
    if known is None:
        _write(checkpoint, columns)
        return list(columns)
    new = [name for name in columns if name not in known]
    gone = [name for name in known if name not in columns]
    other = [name for name in known if name in columns and known[name] != columns[name]]
    if not (new or gone or other):
        return list(known)
    found = [
        f"{text} {', '.join(names)}"
        for text, names in (
            ("has new columns", new),
            ("has lost", gone),
            ("has other types of", other),
        )
        if names
    ]
    others = [name for name in columns if name in known]
    raise InvalidArgument(
        f"source {' and '.join(found)}, but the step's stored state has the columns of its first "
        f"run: name these in the source (columns = {msgspec.json.encode(others).decode()}), or "
        f"delete {checkpoint} to start over with the first event"
    )


def _read(checkpoint: str) -> dict[str, str] | None:
    files, path = _place(checkpoint)
    begun = fs.FileSelector(f"{path.removesuffix(_FILE)}{_BEGUN}", allow_not_found=True)
    is_there = files.get_file_info(path).type != fs.FileType.NotFound
    if not (is_there and files.get_file_info(begun)):
        return None
    with files.open_input_stream(path) as stream:
        return msgspec.json.decode(stream.read(), type=dict[str, str])


def _write(checkpoint: str, columns: Mapping[str, str]) -> None:
    files, path = _place(checkpoint)
    aside = f"{path}.tmp"
    with files.open_output_stream(aside) as stream:
        stream.write(msgspec.json.encode(columns))
    files.move(aside, path)


def _place(checkpoint: str) -> tuple[fs.FileSystem, str]:
    if _URI.match(checkpoint):
        files, path = fs.FileSystem.from_uri(checkpoint)
    else:
        files, path = fs.LocalFileSystem(), checkpoint
    return files, f"{path}/{_FILE}"
