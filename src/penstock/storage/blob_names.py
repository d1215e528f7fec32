"""The rules for names of blobs."""

from __future__ import annotations

import re

from penstock.core.vocabulary.errors import InvalidName

BLOB_ROOTS = ("segments", "snapshots")
"""The first part of every blob's name."""

_PART = re.compile(r"[A-Za-z0-9_#~\-][A-Za-z0-9_#~.\-]*")


def check_blob_name(name: str) -> None:
    """Raise ``InvalidName`` unless ``name`` is a relative path that stays inside the store."""
    parts = name.split("/")
    if len(parts) < 2 or parts[0] not in BLOB_ROOTS:
        raise InvalidName(f"blob {name!r}: a name starts with {' or '.join(BLOB_ROOTS)} and a '/'")
    for part in parts:
        if not _PART.fullmatch(part):
            raise InvalidName(
                f"blob {name!r}: {part!r} cannot be a part of a name; use letters, digits and _ # "
                f"~ - . and no dot at the start"
            )
