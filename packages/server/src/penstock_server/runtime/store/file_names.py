"""Names of segment files, snapshots, and of the bodies of large blocks.

A realm on a storage engine shares its files with the owners before and after it, one of which may
be frozen and not know that it was deposed. So the names it writes end in its epoch, no two owners
ever write one name, and an owner removes only what owners up to its own epoch have written. A
realm that is alone with its files has no epoch, and its names have none.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

SNAPSHOTS: Final = "snapshots/"
BLOCKS: Final = "blocks/"

_EPOCH: Final = r"\.(?P<epoch>[1-9][0-9]{0,14})"
"""Shorter than a checksum, which some names have in the same place."""
_NAME: Final = re.compile(
    rf"segments/.*/[0-9]{{20}}-[0-9]{{20}}(?:\.[0-9a-f]{{16}})?{_EPOCH}\.arrow"
    rf"|{SNAPSHOTS}[0-9]{{20}}{_EPOCH.replace('epoch', 'taken')}\.snap"
    rf"|{BLOCKS}[0-9]{{20}}{_EPOCH.replace('epoch', 'appended')}\.bodies"
)


def epoch_in(name: str) -> int:
    """The epoch of the owner that wrote a file; 0: the name has none."""
    found = _NAME.fullmatch(name)
    return int(found["epoch"] or found["taken"] or found["appended"]) if found else 0


def snapshot_stem(sequence: int) -> str:
    """The beginning of the names of the snapshot after a block; names of older ones sort before."""
    return f"{SNAPSHOTS}{sequence:020d}"


def snapshot_age(name: str) -> tuple[int, int, str]:
    """What snapshots are ordered by: the newest has the most, and more than its own copy."""
    return block_of_snapshot(name), epoch_in(name), name


def block_of_snapshot(name: str) -> int:
    """The newest block whose facts a snapshot holds."""
    return int(name.removeprefix(SNAPSHOTS).partition(".")[0])


def block_of_bodies(name: str) -> int:
    """The block whose bodies a blob holds."""
    return int(name.removeprefix(BLOCKS).partition(".")[0])


class FileNames(Struct, frozen=True):
    """The names that the owner of a shard gives, and those it may remove."""

    epoch: int = 0
    """How often the shard was claimed; 0: the realm is alone with its files."""

    def segment(self, name: str) -> str:
        """The name of a new segment, from the one it has where there is no epoch."""
        return f"{name.removesuffix('.arrow')}.{self.epoch}.arrow" if self.epoch else name

    def snapshots(self, sequence: int) -> tuple[str, ...]:
        """Where the snapshot after a block is.

        All that is known of the channels is in it, so one bad sector must not be the end of them: a
        realm that is alone writes a copy. An engine replicates what it stores.
        """
        stem = snapshot_stem(sequence)
        return (f"{stem}.{self.epoch}.snap",) if self.epoch else (f"{stem}.snap", f"{stem}.copy")

    def bodies(self, sequence: int) -> str:
        """Where the bodies of a block are that is too large for the journal of an engine."""
        return f"{BLOCKS}{sequence:020d}.{self.epoch}.bodies"

    def may_remove(self, name: str) -> bool:
        """Whether no later owner can have written it."""
        return not self.epoch or epoch_in(name) <= self.epoch
