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
    """Stands where the server's clock looks for the module ``time``."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)

    def time_ns(self) -> int:
        (offset,) = OFFSET.unpack_from(self._offset)
        return time.time_ns() + int(offset)

    def clock_gettime_ns(self, clock: int) -> int:
        """The clocks that nobody sets."""
        return time.clock_gettime_ns(clock)


def set_offset(path: Path, offset_ns: int) -> None:
    """Set the clock of every server that was started with this file."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(OFFSET.pack(offset_ns))


def main(arguments: list[str]) -> None:
    from penstock import cli
    from penstock.runtime.writer import clock

    path, *rest = arguments
    vars(clock)["time"] = ShiftedTime(Path(path))
    sys.argv = ["penstock", *rest]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
