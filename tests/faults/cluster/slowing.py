"""A disk that is slow because others write to it: files that are written and synced without end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

THREADS: Final = 2
PIECE_BYTES: Final = 4 << 20
FILE_BYTES: Final = 64 << 20


@contextmanager
def slowed(folder: Path) -> Iterator[None]:
    """Keep the disk that ``folder`` is on busy until the block ends, which leaves nothing there."""
    over = threading.Event()
    files = [folder / f"slowing-{number}" for number in range(THREADS)]
    threads = [threading.Thread(target=_write, args=(file, over)) for file in files]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for file in files:
            file.unlink(missing_ok=True)


def _write(file: Path, over: threading.Event) -> None:
    piece = bytes(PIECE_BYTES)
    with file.open("wb", buffering=0) as written:
        while not over.is_set():
            if written.tell() >= FILE_BYTES:
                written.seek(0)
            written.write(piece)
            os.fsync(written.fileno())
