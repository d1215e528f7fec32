"""A disk that is slow because of other writers: files that are written and synced without end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

THREADS: Final = 2
CHUNK_BYTES: Final = 4 << 20
FILE_BYTES: Final = 64 << 20


@contextmanager
def slow_down(folder: Path) -> Iterator[None]:
    """Keep the disk that ``folder`` is on busy until the block ends, which leaves nothing there."""
    has_ended = threading.Event()
    files = [folder / f"slowing-{number}" for number in range(THREADS)]
    threads = [threading.Thread(target=_write, args=(file, has_ended)) for file in files]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
        for file in files:
            file.unlink(missing_ok=True)


def _write(file: Path, has_ended: threading.Event) -> None:
    chunk = bytes(CHUNK_BYTES)
    with file.open("wb", buffering=0) as written:
        while not has_ended.is_set():
            if written.tell() >= FILE_BYTES:
                written.seek(0)
            written.write(chunk)
            os.fsync(written.fileno())
