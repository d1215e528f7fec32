"""Nodes in processes of their own, on PostgreSQL: started, killed, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from packages.cluster.tests import processes
from packages.cluster.tests.processes import check_a_takeover, check_there_and_back, refusal
from penstock_testing.process import ServerProcess
from tests.contract.postgres_servers import PostgresServers, missing
from tests.loops import on_a_loop
from tests.patience import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "PostgreSQL is there"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[PostgresServers]:
    with PostgresServers() as running:
        yield running


@pytest.fixture(scope="module")
def alone() -> Iterator[PostgresServers]:
    """One server, which each test gives the settings it is about."""
    with PostgresServers(standbys=0) as running:
        yield running


def node(servers: PostgresServers, directory: Path, *, name: str = "penstock") -> ServerProcess:
    return processes.node(servers.engine, directory, name=name)


@pytest.mark.spec("N3", "N4")
@on_a_loop
async def test_the_owner_is_killed_and_nothing_is_lost_or_doubled(
    servers: PostgresServers, tmp_path: Path
) -> None:
    await check_a_takeover(partial(node, servers), tmp_path)


@pytest.mark.spec("N3", "E4")
def test_a_realm_moves_into_a_cluster_and_out_of_it(
    servers: PostgresServers, tmp_path: Path
) -> None:
    tell = partial(processes.command, servers.engine, name="moved")
    check_there_and_back(partial(node, servers, name="moved"), tell, tmp_path)


def test_a_node_whose_engine_is_gone_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with PostgresServers() as servers, node(servers, tmp_path / "n1") as owner:
        for number in range(3):
            servers.kill(number)

        assert owner.terminate() == 0

        (abandoned,) = owner.logged("node.abandoned")
        assert abandoned["reason"] == "the engine does not answer"
        assert owner.logged("realm.stopped")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"synchronous_standby_names": ""},
            "set synchronous_standby_names = 'ANY 1 (s1, s2)' in its postgresql.conf",
        ),
        ({"synchronous_commit": "local"}, "set synchronous_commit = on in its postgresql.conf"),
        ({"fsync": "off"}, "set fsync = on in its postgresql.conf"),
    ],
    ids=["no standbys named", "commits unheard", "no fsync"],
)
def test_a_node_refuses_a_server_that_could_lose_something(
    alone: PostgresServers, tmp_path: Path, settings: dict[str, str], line: str
) -> None:
    alone.kill(0)
    alone.start(0, **settings)

    reason = refusal(node(alone, tmp_path / "n1"))

    assert alone.address(0) in reason
    assert line in reason
    assert not (tmp_path / "n1" / "journal").exists()


def test_a_node_that_is_started_before_the_standbys_waits_for_them(
    servers: PostgresServers, tmp_path: Path
) -> None:
    for number in (1, 2):
        servers.kill(number)
    with ExitStack() as stack:
        starting = node(servers, tmp_path / "n1", name="early").begin()
        stack.push(starting)
        until(lambda: bool(starting.logged("engine.waiting")))
        for number in (1, 2):
            servers.start(number)
        until(lambda: bool(starting.logged("realm.listening")))

        (waiting,) = starting.logged("engine.waiting")
        assert "start the standbys" in waiting["reason"]
        assert starting.terminate() == 0


def test_a_node_refuses_tables_that_were_made_anew(
    servers: PostgresServers, tmp_path: Path
) -> None:
    with node(servers, tmp_path / "n1", name="anew"):
        pass

    servers.sql(0, "DELETE FROM penstock_head WHERE journal = 'anew/0'")
    servers.sql(0, "DELETE FROM penstock_block WHERE journal = 'anew/0'")
    refusal_text = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "journal anew/0 is missing in the table penstock_head" in refusal_text
    assert "To fix: restore the database from a backup" in refusal_text

    servers.sql(
        0, "DELETE FROM penstock_register WHERE 'anew' IN (register, split_part(key, '/', 1))"
    )
    lost = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "the engine has no realm under the name 'anew'" in lost
