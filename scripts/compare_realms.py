"""Compares two realms that do not run: every store with its ids, counters, durables and events, and
the users and rights. Usage: ``python scripts/compare_realms.py DIR OTHER``, each a data directory.

A realm that was moved into a cluster and out of it again equals the original, and so does a realm
restored from a backup. Exit status: 0 if the realms are equal; 1 if they differ, with a line for
each difference.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock_cluster.bootstrap.relocating import source_realm
from penstock_testing.comparing import Contents, contents_of, differences


async def read(directory: Path) -> Contents:
    """Return the contents of the realm in a data directory."""
    async with source_realm(directory) as realm:
        contents = await contents_of(realm.recovered, realm.stores.blobs, realm.access)
        return {"identity": realm.identity, **contents}


def main(first: str, second: str) -> int:
    """Print the differences of two realms. Return the exit status."""
    lines = differences(*(asyncio.run(read(Path(path))) for path in (first, second)))
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
