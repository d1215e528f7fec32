"""Merges micro-batches into an Iceberg table again and again, each time in a forked process that is
killed at another step, as the driver of a query with a checkpoint.

``python -m packages.client.tests.merge_kills TABLE CHECKPOINT KILLS SEED``
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pyarrow as pa

from packages.client.tests.archiver_kills import killed_runs
from penstock.tables import Table

BATCHES: Final = 9


def states(number: int) -> pa.Table:
    """Return the rows of a micro-batch: three keys, two of which the one before has changed, and
    from the middle on with one more column."""
    rows = {"key": list(range(number, number + 3)), "batch": [number] * 3}
    later = {"deleted": [False, False, True]} if number >= BATCHES // 2 else {}
    return pa.table({**rows, **later})


def merged(uri: str, checkpoint: Path) -> None:
    """Merge the micro-batches that the checkpoint does not have yet."""
    table = Table.open(uri, "iceberg")
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for number in range(done, BATCHES):
        table.merge(states(number), "key", "query", number, content=str(number))
        if number % 3 == 2:
            table.compact(keep_hours=1)  # keeps all snapshots of the test
        checkpoint.write_text(str(number + 1))


def main() -> int:
    uri, checkpoint, kills, seed = sys.argv[1:]
    import_module("pyiceberg.catalog.sql")  # forked processes need it
    killed = killed_runs(lambda: merged(uri, Path(checkpoint)), int(kills), int(seed))
    sys.stdout.write(f"{killed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
