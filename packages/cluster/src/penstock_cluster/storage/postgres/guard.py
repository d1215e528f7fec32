"""Check that a PostgreSQL server cannot lose acknowledged data. Each refusal names the line of
``postgresql.conf`` to change."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock_core.vocabulary.errors import NoQuorum, Unavailable

VERSION_MIN: Final = 140000
REQUIRED_ON: Final = {
    "fsync": "a power cut loses acknowledged data",
    "full_page_writes": "a power cut may leave half a page",
}
"""Settings that must be on, each with the danger otherwise."""
STANDBYS: Final = """
SELECT count(*) AS present,
       coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)), 0)::bigint AS lag
FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')
"""
"""Number of connected standbys that a commit may wait for, and the lag of the slowest one in
bytes."""
WAITS: Final = ("on", "remote_apply")
"""Values of ``synchronous_commit`` that make a commit wait for a standby's disk."""


async def check_settings(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` if the server could lose what it has acknowledged."""
    await check_version(connection, server)
    await check_writes(connection, server)
    await check_commit(connection, server)
    await check_checksums(connection, server)
    await check_standby_names(connection, server)


async def check_version(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` for a server that is too old."""
    version = int(await _setting(connection, "server_version_num"))
    if version < VERSION_MIN:
        raise Unavailable(
            f"PostgreSQL at {server} is version {version // 10000}; a cluster needs 14 or newer"
        )


async def check_writes(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` if a power cut could destroy data on the server's disk."""
    for name, danger in REQUIRED_ON.items():
        value = await _setting(connection, name)
        if value != "on":
            raise _wrong(server, name, value, required="on", danger=danger)


async def check_commit(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` if a commit does not wait for a standby."""
    waits = await _setting(connection, "synchronous_commit")
    if waits not in WAITS:
        danger = "a commit is answered before it is on a standby's disk"
        raise _wrong(server, "synchronous_commit", waits, required="on", danger=danger)


async def check_checksums(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` if damage would be served as data."""
    if await _setting(connection, "data_checksums") != "on":
        raise Unavailable(
            f"PostgreSQL at {server} has no data checksums, so damage would be served as data; "
            f"stop the server and run: pg_checksums --enable -D DIR (or initdb --data-checksums)"
        )


async def check_standby_names(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` if a commit waits for no standby."""
    if not (await _setting(connection, "synchronous_standby_names")).strip():
        raise _wrong(
            server,
            "synchronous_standby_names",
            "''",
            required="'ANY 1 (s1, s2)'",
            danger="acknowledged data is on one machine alone",
        )


async def check_standbys(connection: Any, server: str) -> None:
    """Raise ``NoQuorum`` unless enough synchronous standbys are connected for a commit.

    Checked when a shard is opened. Later a commit waits for its standby without a limit.
    """
    names = await _setting(connection, "synchronous_standby_names")
    required = standbys_required(names)
    present = await connection.fetchval(STANDBYS)
    if present < required:
        raise NoQuorum(
            f"PostgreSQL at {server} has {present} synchronous standbys connected, and "
            f"synchronous_standby_names = {names!r} waits for {required}: start the standbys, each "
            f"with an application_name in its primary_conninfo that the setting names"
        )


def standbys_required(names: str) -> int:
    """Return the number of standbys that a commit waits for with this
    ``synchronous_standby_names``."""
    match = re.match(r"\s*(?:ANY|FIRST)?\s*(\d+)\s*\(", names, re.IGNORECASE)
    return int(match.group(1)) if match else 1


async def _setting(connection: Any, name: str) -> str:
    value = await connection.fetchval("SELECT current_setting($1)", name)
    return str(value)


def _wrong(server: str, name: str, actual: str, required: str, danger: str) -> Unavailable:
    """Return the error for a setting with which the server is not safe."""
    return Unavailable(
        f"PostgreSQL at {server} has {name} = {actual}, so {danger}; set {name} = {required} in "
        "its "
        f"postgresql.conf"
    )
