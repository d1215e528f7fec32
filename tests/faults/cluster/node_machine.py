"""``penstock`` as a node whose machine is played: ``python -m tests.faults.cluster.node_machine
FILE …``

Everything is the real node (``tests.faults.clocked``), and these lie beside FILE, its clock:

- ``halt``: the order to stop (SIGSTOP) before the next block is sent to the engine. So an owner is
  frozen with a block in its hands, on either engine. It is obeyed once.
- ``mount``: a link to what this machine has mounted where ``cluster.blobs`` is. The nodes of a run
  are on one machine, so without it all would see the same files.
- ``format``: the newest format that this version knows, if that is another one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from penstock_cluster.bootstrap import cluster as bootstrap
from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.serving import cluster as serving
from penstock_cluster.storage.jetstream.journal import JetStreamJournal
from penstock_cluster.storage.postgres.journal import PostgresJournal
from penstock_core.vocabulary.ports import Blobs
from tests.faults import clocked

Send = Callable[..., Awaitable[Any]]

SENDS: Final = ((JetStreamJournal, "_put"), (PostgresJournal, "_insert"))
"""Methods that send a block which is already bound to its place in the journal."""


class NodeMachine:
    """What a node's machine has of its own, in the folder of the node's clock."""

    def __init__(self, folder: Path) -> None:
        self._halt = folder / "halt"
        self._mount = folder / "mount"
        self._format = folder / "format"

    def order_halt(self) -> None:
        """Order the node to stop before its next append."""
        self._halt.touch()

    def mount(self, folder: Path) -> None:
        """Have the machine find ``folder`` where ``cluster.blobs`` is."""
        link = self._mount.with_name("mount.new")
        link.symlink_to(folder, target_is_directory=True)
        link.rename(self._mount)

    def know_format(self, format: int | None) -> None:
        """Have the next process know no newer format than this; None: those it knows."""
        if format is None:
            self._format.unlink(missing_ok=True)
        else:
            self._format.write_text(f"{format}")

    def take_over(self) -> None:
        """Have this process see the machine that is played."""
        for kind, name in SENDS:
            setattr(kind, name, self._halting(vars(kind)[name]))
        for module, name, seen in (
            (bootstrap, "shared_files", self._files),
            (serving, "member", self._member),
        ):
            setattr(module, name, partial(seen, vars(module)[name]))

    def _halting(self, send: Send) -> Send:
        def stop_and_send(*arguments: Any, **options: Any) -> Awaitable[Any]:
            if self._halt.exists():
                self._halt.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            return send(*arguments, **options)

        return stop_and_send

    def _files(self, open: Callable[..., Blobs], uri: str, name: str, shard: int) -> Blobs:
        return open(self._mount.absolute().as_uri(), name, shard)

    def _member(self, make: Callable[..., MemberRecord], *given: Any, **named: Any) -> MemberRecord:
        record = make(*given, **named)
        if not self._format.exists():
            return record
        return replace(record, format=int(self._format.read_text()))


def main(arguments: list[str]) -> None:
    """Run the node, whose clock comes first."""
    NodeMachine(Path(arguments[0]).parent).take_over()
    clocked.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
