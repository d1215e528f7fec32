"""Start-up refuses a PostgreSQL that could lose what it has acknowledged, and names the line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_cluster.storage.postgres.guard import (
    check_settings,
    check_standbys,
    standbys_required,
)
from penstock_core.vocabulary.errors import Unavailable

SAFE = {
    "server_version_num": "150018",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "data_checksums": "on",
    "synchronous_standby_names": "ANY 1 (s1, s2)",
}


class Server:
    """Answers what the guard asks."""

    def __init__(self, settings: dict[str, str], standbys: int = 2) -> None:
        self._settings = settings
        self._standbys = standbys

    async def fetchval(self, statement: str, *arguments: Any) -> Any:
        return self._settings[arguments[0]] if arguments else self._standbys


def test_a_safe_server_is_taken() -> None:
    asyncio.run(check_settings(Server(SAFE), "db:5432"))
    asyncio.run(check_settings(Server({**SAFE, "synchronous_commit": "remote_apply"}), "db:5432"))


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("server_version_num", "130012", "is version 13; a cluster needs 14 or newer"),
        ("fsync", "off", "set fsync = on in its postgresql.conf"),
        ("full_page_writes", "off", "set full_page_writes = on in its postgresql.conf"),
        ("synchronous_commit", "off", "set synchronous_commit = on in its postgresql.conf"),
        ("synchronous_commit", "local", "set synchronous_commit = on in its postgresql.conf"),
        ("synchronous_commit", "remote_write", "has synchronous_commit = remote_write, so a"),
        ("data_checksums", "off", "pg_checksums --enable"),
        ("synchronous_standby_names", "", r"set synchronous_standby_names = 'ANY 1 \(s1, s2\)'"),
        ("synchronous_standby_names", " ", "on one machine alone"),
    ],
)
def test_a_server_that_could_lose_something_is_refused(
    setting: str, value: str, named: str
) -> None:
    with pytest.raises(Unavailable, match=f"PostgreSQL at db:5432 .*{named}"):
        asyncio.run(check_settings(Server({**SAFE, setting: value}), "db:5432"))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("ANY 1 (a, b)", 1),
        ("any 2(a, b, c)", 2),
        ("FIRST 2 (a, b)", 2),
        ("2 (a, b)", 2),
        ("a, b", 1),
    ],
)
def test_the_standbys_a_commit_waits_for_have_to_be_there(names: str, wanted: int) -> None:
    settings = {**SAFE, "synchronous_standby_names": names}

    assert standbys_required(names) == wanted
    asyncio.run(check_standbys(Server(settings, wanted), "db:5432"))
    with pytest.raises(Unavailable, match=f"waits for {wanted}: start the standbys"):
        asyncio.run(check_standbys(Server(settings, wanted - 1), "db:5432"))
