"""``penstock`` as a node on a simulated machine: ``python -m tests.faults.cluster.node_machine FILE
…``

The node is the real one (``tests.faults.clocked``). The folder of FILE, its clock, has also:
- ``halt``: the order to stop (SIGSTOP) before the next block is sent to the engine, so that an
  owner is frozen with a block to send, on any engine. It is obeyed once.
- ``mount``: a link to the folder that this machine has mounted at ``cluster.blobs``. The nodes of a
  run share one machine, so without it all would see the same files.
- ``format``: the newest format that this version supports, if it is another one.
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
"""Methods that send a block that is already bound to its place in the journal."""


class NodeMachine:
    """The machine of a node, controlled by files in the folder of the node's clock."""

    def __init__(self, folder: Path) -> None:
        self._halt = folder / "halt"
        self._mount = folder / "mount"
        self._format = folder / "format"

    def order_halt(self) -> None:
        """Order the node to stop before its next append."""
        self._halt.touch()

    def mount(self, folder: Path) -> None:
        """Mount ``folder`` at ``cluster.blobs`` for this machine."""
        link = self._mount.with_name("mount.new")
        link.symlink_to(folder, target_is_directory=True)
        link.rename(self._mount)

    def set_format(self, format: int | None) -> None:
        """Limit the formats that the next process supports; None removes the limit."""
        if format is None:
            self._format.unlink(missing_ok=True)
        else:
            self._format.write_text(f"{format}")

    def take_over(self) -> None:
        """Patch this process so that it sees the simulated machine."""
        for kind, name in SENDS:
            setattr(kind, name, self._halting(vars(kind)[name]))
        for module, name, replacement in (
            (bootstrap, "shared_files", self._files),
            (serving, "member", self._member),
        ):
            setattr(module, name, partial(replacement, vars(module)[name]))

    def _halting(self, send: Send) -> Send:
        def stop_and_send(*arguments: Any, **options: Any) -> Awaitable[Any]:
            if self._halt.exists():
                self._halt.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            return send(*arguments, **options)

        return stop_and_send

    def _files(self, open: Callable[..., Blobs], uri: str, name: str, shard: int) -> Blobs:
        return open(self._mount.absolute().as_uri(), name, shard)

    def _member(
        self, make: Callable[..., MemberRecord], *arguments: Any, **options: Any
    ) -> MemberRecord:
        record = make(*arguments, **options)
        if not self._format.exists():
            return record
        return replace(record, format=int(self._format.read_text()))


def main(arguments: list[str]) -> None:
    """Run the node; the first argument is its clock."""
    NodeMachine(Path(arguments[0]).parent).take_over()
    clocked.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
