"""Compares two realms that do not run: every store with its ids, counters, durables and events, and
users and rights. ``python scripts/compare_realms.py DIR OTHER``, each a data directory.

A realm that was moved into a cluster and out of it again, or restored from a backup, is the same.
Exit status: 0 they are the same, 1 they differ, with a line for each difference.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock_cluster.bootstrap.relocating import source_realm
from penstock_testing.comparing import Contents, contents_of, differences


async def read(directory: Path) -> Contents:
    async with source_realm(directory) as realm:
        found = await contents_of(realm.recovered, realm.stores.blobs, realm.access)
        return {"identity": realm.identity, **found}


def main(one: str, other: str) -> int:
    found = differences(*(asyncio.run(read(Path(each))) for each in (one, other)))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
