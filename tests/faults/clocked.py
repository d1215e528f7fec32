"""``penstock serve`` on a machine whose clock can be set: ``python -m tests.faults.clocked FILE …``

The other arguments go to ``penstock`` unchanged. The server is the real one, except that its time
of day is the machine's plus the offset in FILE: eight bytes, in nanoseconds, written by the test.
Setting the machine's own clock would disturb all other processes, and Linux has no time of day for
a single process.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

OFFSET = struct.Struct("<q")


class ShiftedTime:
    """The time of day plus an offset that another process may set."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)

    def time_ns(self) -> int:
        (offset,) = OFFSET.unpack_from(self._offset)
        return time.time_ns() + int(offset)


def set_offset(path: Path, offset_ns: int) -> None:
    """Set the clock of every server that was started with this file."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(OFFSET.pack(offset_ns))


def shift(path: Path) -> None:
    """Let new clocks of this process use this file's time of day."""
    from penstock_server.runtime.writer.clock import SystemClock

    initialize = SystemClock.__init__
    _, *other_defaults = initialize.__defaults__ or ()
    initialize.__defaults__ = (ShiftedTime(path).time_ns, *other_defaults)


def main(arguments: list[str]) -> None:
    from penstock_server import cli

    path, *rest = arguments
    shift(Path(path))
    sys.argv = ["penstock", *rest]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
