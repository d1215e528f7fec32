"""What a PostgreSQL server has to promise before a realm trusts it. Each refusal names the line of
``postgresql.conf`` to change."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock_core.vocabulary.errors import NoQuorum, Unavailable

VERSION_MIN: Final = 140000
ON: Final = {
    "fsync": "a power cut loses what was acknowledged",
    "full_page_writes": "a power cut may leave half a page",
}
STANDBYS: Final = """
SELECT count(*) AS present,
       coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)), 0)::bigint AS lag
FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')
"""
"""How many standbys a commit may wait for are there, and how many bytes the last is behind."""
WAITS: Final = ("on", "remote_apply")
"""Settings of ``synchronous_commit`` with which a commit is on a standby's disk."""


async def check_settings(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` when the server could lose what it has acknowledged."""
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
    """Raise ``Unavailable`` when a power cut could take what is on the server's disk."""
    for name, danger in ON.items():
        found = await _setting(connection, name)
        if found != "on":
            raise _wrong(server, name, found, wanted="on", danger=danger)


async def check_commit(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` when a commit does not wait for a standby."""
    waits = await _setting(connection, "synchronous_commit")
    if waits not in WAITS:
        danger = "a commit is answered before it is on a standby's disk"
        raise _wrong(server, "synchronous_commit", waits, wanted="on", danger=danger)


async def check_checksums(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` when damage would be served as data."""
    if await _setting(connection, "data_checksums") != "on":
        raise Unavailable(
            f"PostgreSQL at {server} has no data checksums, so damage would be served as data; "
            f"stop the server and run: pg_checksums --enable -D DIR (or initdb --data-checksums)"
        )


async def check_standby_names(connection: Any, server: str) -> None:
    """Raise ``Unavailable`` when no standby is waited for."""
    if not (await _setting(connection, "synchronous_standby_names")).strip():
        raise _wrong(
            server,
            "synchronous_standby_names",
            "''",
            wanted="'ANY 1 (s1, s2)'",
            danger="what was acknowledged is on one machine alone",
        )


async def check_standbys(connection: Any, server: str) -> None:
    """Raise ``NoQuorum`` unless enough synchronous standbys are there to commit anything.

    Asked when a shard is opened. Later a commit waits for its standby for as long as it takes.
    """
    names = await _setting(connection, "synchronous_standby_names")
    wanted = standbys_wanted(names)
    there = await connection.fetchval(STANDBYS)
    if there < wanted:
        raise NoQuorum(
            f"PostgreSQL at {server} has {there} synchronous standbys connected, and "
            f"synchronous_standby_names = {names!r} waits for {wanted}: start the standbys, each "
            f"with an application_name in its primary_conninfo that the setting names"
        )


def standbys_wanted(names: str) -> int:
    """How many standbys a commit waits for, by a value of ``synchronous_standby_names``."""
    found = re.match(r"\s*(?:ANY|FIRST)?\s*(\d+)\s*\(", names, re.IGNORECASE)
    return int(found.group(1)) if found else 1


async def _setting(connection: Any, name: str) -> str:
    found = await connection.fetchval("SELECT current_setting($1)", name)
    return str(found)


def _wrong(server: str, name: str, found: str, wanted: str, danger: str) -> Unavailable:
    return Unavailable(
        f"PostgreSQL at {server} has {name} = {found}, so {danger}; set {name} = {wanted} in its "
        f"postgresql.conf"
    )
