"""The files of a realm in a folder, and their content."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import Embedded
from penstock_testing.stores import open_store


def files(directory: Path) -> list[Path]:
    return sorted((directory / "segments").rglob("*.arrow"))


def on_disk(directory: Path) -> Embedded:
    return open_store(str(directory), RealDisk())


def ids_in(file: Path) -> list[int]:
    """Return the rows that plain Arrow reads."""
    with pa.memory_map(str(file)) as source:
        ids: list[int] = pa.ipc.open_file(source).read_all().column("event_id").to_pylist()
    return ids
