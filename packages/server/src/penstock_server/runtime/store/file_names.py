"""Names of segment files, snapshots, and of the bodies of large blocks.

A realm on a storage engine shares its files with the owners before and after it, and a frozen owner
may not know that it was deposed. So the names of files that an owner writes end in its epoch: two
owners never write the same name, and an owner removes only files of owners up to its epoch. A realm
that does not share its files has no epoch, and its files have none in their names.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

SNAPSHOTS: Final = "snapshots/"
BLOCKS: Final = "blocks/"

_EPOCH: Final = r"\.(?P<epoch>[1-9][0-9]{0,14})"
"""An epoch has at most 15 digits, so that a checksum of 16 hex digits never looks like one."""
_NAME: Final = re.compile(
    rf"segments/.*/[0-9]{{20}}-[0-9]{{20}}(?:\.[0-9a-f]{{16}})?{_EPOCH}\.arrow"
    rf"|{SNAPSHOTS}[0-9]{{20}}{_EPOCH.replace('epoch', 'taken')}\.snap"
    rf"|{BLOCKS}[0-9]{{20}}{_EPOCH.replace('epoch', 'appended')}\.bodies"
)


def epoch_in(name: str) -> int:
    """Return the epoch of the owner that wrote a file; 0 if the name has none."""
    match = _NAME.fullmatch(name)
    return int(match["epoch"] or match["taken"] or match["appended"]) if match else 0


def snapshot_stem(sequence: int) -> str:
    """Return the beginning of the names of the snapshot after a block. Names of older snapshots
    sort before it."""
    return f"{SNAPSHOTS}{sequence:020d}"


def snapshot_age(name: str) -> tuple[int, int, str]:
    """Return the sort key of snapshots: the block, then the epoch of the owner that wrote it."""
    return block_of_snapshot(name), epoch_in(name), name


def block_of_snapshot(name: str) -> int:
    """Return the newest block whose facts a snapshot has."""
    return int(name.removeprefix(SNAPSHOTS).partition(".")[0])


def block_of_bodies(name: str) -> int:
    """Return the block whose bodies a blob has."""
    return int(name.removeprefix(BLOCKS).partition(".")[0])


class FileNames(Struct, frozen=True):
    """The names of files that the owner of a shard writes and may remove."""

    epoch: int = 0
    """The number of times that the shard was claimed; 0 if the realm does not share its files."""

    def segment(self, name: str) -> str:
        """Return the name of a new segment: ``name``, with the epoch if the realm has one."""
        return f"{name.removesuffix('.arrow')}.{self.epoch}.arrow" if self.epoch else name

    def snapshots(self, sequence: int) -> tuple[str, ...]:
        """Return the names of the snapshot after the block ``sequence``.

        A snapshot has the whole state of the channels, so a single bad sector must not destroy it:
        a realm that does not share its files writes a copy, too. A storage engine replicates files
        by itself.
        """
        stem = snapshot_stem(sequence)
        return (f"{stem}.{self.epoch}.snap",) if self.epoch else (f"{stem}.snap", f"{stem}.copy")

    def bodies(self, sequence: int) -> str:
        """Return the name for the bodies of a block that is too large for an engine's journal."""
        return f"{BLOCKS}{sequence:020d}.{self.epoch}.bodies"

    def may_remove(self, name: str) -> bool:
        """Whether this owner may remove a file: no later owner can have written it."""
        return not self.epoch or epoch_in(name) <= self.epoch
