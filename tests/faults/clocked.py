"""``penstock serve`` on a machine whose clock can be set: ``python -m tests.faults.clocked FILE …``

The rest of the line goes to ``penstock`` as it is. Everything is the real server, but where it asks
the machine for the time of day, it gets that time and the offset that FILE holds: eight bytes,
nanoseconds, written by whoever plays the machine's clock. The machine's own clock cannot be set
without harm to everything else that runs on it, and Linux has no time of day for one process.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

OFFSET = struct.Struct("<q")


class ShiftedTime:
    """The time of day with an offset that others may set."""

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
    """Have the clocks of this process begin with this file's time of day."""
    from penstock_server.runtime.writer.clock import SystemClock

    begin = SystemClock.__init__
    _, *others = begin.__defaults__ or ()
    begin.__defaults__ = (ShiftedTime(path).time_ns, *others)


def main(arguments: list[str]) -> None:
    from penstock_server import cli

    path, *rest = arguments
    shift(Path(path))
    sys.argv = ["penstock", *rest]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
