"""Data directories, opened as they lie on a disk."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from penstock.core.vocabulary.ports import Clock, Offload, inline
from penstock.runtime.clock import SystemClock
from penstock.storage.disk import Disk
from penstock.storage.embedded import Embedded, open_embedded


def absolute(directory: Path) -> str:
    """The path that a data directory has whatever the working directory becomes."""
    return str(directory.expanduser().absolute())


def opened(
    root: str, disk: Disk, *, offload: Offload = inline, clock: Clock | None = None
) -> Embedded:
    """The stores in a data directory, made where there is none.

    What takes long is done by ``offload``. Raises ``DataDirectoryInUse``, ``NewerFormat``,
    ``Damaged``.
    """
    return open_embedded(
        root,
        disk=disk,
        offload=offload,
        clock=clock or SystemClock(),
        identity=lambda: secrets.randbits(64),
        holder=holder(),
    )


def holder() -> str:
    """Who has a data directory open that this process has."""
    return f"the process {os.getpid()}"
