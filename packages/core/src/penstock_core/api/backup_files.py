"""The contents of a backup: copied files, and a manifest that is written at its end."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

FORMAT: Final = 1
"""Version of the manifest and of the directory layout of a backup."""


MANIFEST: Final = "backup.json"
"""Name of the manifest in a backup."""


_PART: Final = r"[A-Za-z0-9_#~%-][A-Za-z0-9_#~%.-]{0,254}"
"""One part of a path: not empty, without a separator, and neither ``.`` nor ``..``."""


_DATA_FILE: Final = re.compile(
    rf"journal/\d{{20}}\.log|pages/\d+/\d+\.(page|kept)|registry/{_PART}|snapshots/{_PART}"
    rf"|segments(/{_PART}){{2,300}}|audit(-[a-z0-9-]+)?\.ndjson"
)


def is_data_file(name: str) -> bool:
    """Whether a backup copies files of this name. A restore writes no other files, so that a
    manifest cannot make it write outside its folder or overwrite other files."""
    return len(name) < 4_096 and _DATA_FILE.fullmatch(name) is not None


def path_in_backup(name: str, stamp: int, at_us: int) -> str:
    """Return the path of a data file in a backup taken at ``at_us``. A file with a stamp never
    changes, so later backups reuse it."""
    return f"kept/{name}.{stamp:x}" if stamp else f"{at_us}/{name}"


class KeptFile(Struct, frozen=True, kw_only=True):
    """A file in a backup."""

    name: str
    """Path of the file in a data directory."""
    path: str
    """Path of the file in the backup."""
    size: int
    checksum: str
    """XXH3-64 of the content, in hexadecimal."""
    stamp: int = 0
    """Identifies the content: files with the same name, size and stamp have the same bytes; 0 if
    the file may change."""


class BackupManifest(Struct, frozen=True, kw_only=True):
    """``backup.json``, which marks a folder or archive as a complete backup. It is written last."""

    format: int
    realm: str
    name: str
    version: str
    """Version of Penstock that ran the realm."""
    at: str
    """Time of the backup in UTC. The backup contains everything that was acknowledged earlier."""
    files: tuple[KeptFile, ...]
