"""Opens data directories on a disk."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from penstock.core.vocabulary.ports import Clock, Offload, inline
from penstock.runtime.clock import SystemClock
from penstock.storage.disk import Disk
from penstock.storage.embedded import Embedded, open_embedded


def absolute(directory: Path) -> str:
    """The absolute path of a data directory, which a change of the working directory does not
    affect."""
    return str(directory.expanduser().absolute())


def opened(
    root: str, disk: Disk, *, offload: Offload = inline, clock: Clock | None = None
) -> Embedded:
    """Open the stores in a data directory; a missing one is created.

    ``offload`` runs what takes long. Raises ``DataDirectoryInUse``, ``NewerFormat``, ``Damaged``.
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
    """A description of this process, for errors about a data directory that it has open."""
    return f"the process {os.getpid()}"
