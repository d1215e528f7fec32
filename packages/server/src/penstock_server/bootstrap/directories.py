"""Opens data directories, and writes single files in them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from penstock_core.vocabulary.ports import Clock, Offload, inline
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.disk import Disk
from penstock_server.storage.embedded import Embedded, open_embedded


def absolute(directory: Path) -> str:
    """Return the absolute path of a data directory, which does not depend on later changes of the
    working directory."""
    return str(directory.expanduser().absolute())


def opened(
    root: str, disk: Disk, *, offload: Offload = inline, clock: Clock | None = None
) -> Embedded:
    """Open the stores in a data directory; a missing one is created.

    ``offload`` runs slow operations. Raises ``DataDirectoryInUse``, ``NewerFormat``, ``Damaged``.
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
    """Return a description of this process, for error texts about a data directory in use."""
    return f"the process {os.getpid()}"


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file under a temporary name and rename it, so that it is never visible incompletely.
    Raises ``OSError``."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
