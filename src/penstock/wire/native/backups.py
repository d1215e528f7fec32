"""Headers of a backup of a running realm, what answers them, and the manifest it ends with."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from penstock.core.bounds import Name, Number
from penstock.wire.native.administration import Transfer

FORMAT: Final = 1
"""Of the manifest, and where a backup has its files."""
MANIFEST: Final = "backup.json"


_PART: Final = r"[A-Za-z0-9_#~%-][A-Za-z0-9_#~%.-]{0,254}"
_DATA_FILE: Final = re.compile(
    rf"journal/\d{{20}}\.log|pages/\d+/\d+\.(page|kept)|registry/{_PART}|snapshots/{_PART}"
    rf"|segments(/{_PART}){{2,300}}|audit(-[a-z0-9-]+)?\.ndjson"
)


def is_data_file(name: str) -> bool:
    """Whether a data directory has files of this name that a backup copies. No other is written,
    whatever a realm or a manifest names: not beside the folder, and not what somebody else would
    take for his own."""
    return len(name) < 4_096 and _DATA_FILE.fullmatch(name) is not None


class BeginBackup(Transfer, frozen=True, tag=110):
    """Capture the whole data directory as it stands now; answered by ``BackupBegun``."""


class ReadBackup(Transfer, frozen=True, tag=111):
    """Bytes of one of the captured files, from ``offset`` on; answered by them."""

    backup: Name
    file: Number
    """By its place in ``BackupBegun.files``."""
    offset: Number


class EndBackup(Transfer, frozen=True, tag=112):
    backup: Name


class CapturedFile(Struct, frozen=True):
    """A file of the data directory as long as it was at the moment of a backup."""

    name: str
    """Its path there."""
    size: int
    stamp: int = 0
    """Same name, size and stamp: the same bytes, for ever; 0: that cannot be told."""


class BackupBegun(Struct, frozen=True, kw_only=True):
    """The data directory was captured; its files can be read."""

    backup: str
    realm: str
    """Identity of the realm."""
    name: str
    version: str
    at_us: int
    files: tuple[CapturedFile, ...]


class KeptFile(Struct, frozen=True, kw_only=True):
    """A file in a backup."""

    name: str
    """Its path in a data directory."""
    path: str
    """Its path in the backup."""
    size: int
    checksum: str
    """XXH3-64 of its bytes, in hex."""
    stamp: int = 0


class BackupManifest(Struct, frozen=True, kw_only=True):
    """``backup.json``: what makes a folder or archive a backup. It is written last."""

    format: int
    realm: str
    name: str
    version: str
    """Of Penstock, that ran the realm."""
    at: str
    """Everything acknowledged before this moment, in UTC, is in it."""
    files: tuple[KeptFile, ...]
