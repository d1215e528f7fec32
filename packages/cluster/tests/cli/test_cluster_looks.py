"""``penstock cluster status`` and ``doctor``, on engine servers in memory whose nodes renew when
they are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from packages.cluster.tests.cli.engines import (
    ENGINE,
    KIND,
    SETTINGS,
    Renewing,
    fill,
    register,
)
from penstock_cluster.bootstrap import cluster
from penstock_cluster.cli.cluster_checks import checks_of, condition_text
from penstock_cluster.nodes.cluster_view import ClusterExamined, PortReached
from penstock_cluster.owning.member_view import ClusterSeen, MemberSeen
from penstock_core.vocabulary.ports import (
    EngineCheck,
    EngineHealth,
    EngineServer,
)
from penstock_server.cli.checks.checks import Check
from penstock_server.cli.program import app
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings.loading import load
from penstock_testing.engine import EngineServers

MINUTE_US = 60_000_000


Run = Callable[..., Result]


@pytest.fixture
def servers() -> EngineServers:
    return EngineServers()


@pytest.fixture
def run(servers: EngineServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    register(tmp_path, monkeypatch, servers, Renewing)

    def ran(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["cluster", *arguments, "--cluster", ENGINE])

    return ran


@pytest.fixture
def filled(servers: EngineServers) -> EngineServers:
    import asyncio

    asyncio.run(fill(servers))
    return servers


def test_status_shows_owner_nodes_and_servers(filled: EngineServers, run: Run) -> None:
    filled.running = 2
    ran = run("status")

    assert ran.exit_code == 0, ran.output
    rows = [" ".join(row.split()) for row in ran.stdout.splitlines()]
    assert "cluster penstock, format 1" in rows
    assert any(row.startswith("owner n1, epoch 4, lease ") and "s left" in row for row in rows)
    assert "engine memory 1, 2 of 3 servers, with a majority, leader: memory" in rows
    assert "damage none reported" in rows
    assert any(row.startswith("n1 owner 1.0 +0.0 s") for row in rows)
    assert any(row.startswith("n2 stands by 1.0") for row in rows)
    assert "server-1 leads 1 memory" in rows
    assert "server-3 down: it is not running 1 memory" in rows


@pytest.mark.parametrize("options", [["--json"], ["--format", "json"]])
def test_status_as_json(filled: EngineServers, run: Run, options: list[str]) -> None:
    status = json.loads(run("status", *options).stdout)

    assert (status["cluster"], status["found"], status["owner"]) == ("penstock", True, "n1")
    assert (status["epoch"], status["format"], status["room"]) == (4, 1, None)
    assert 0 < status["lease_left_s"] <= 5
    assert {member["node"]: member["condition"] for member in status["members"]} == {
        "n1": "owner",
        "n2": "stands by",
    }
    assert status["engine"]["has_quorum"]
    assert [server["leads"] for server in status["servers"]] == [True, False, False]


class Lagging(Renewing):
    async def health(self) -> EngineHealth:
        return msgspec.structs.replace(await super().health(), sync="always", lag=162)


def test_status_says_whose_appends_are_missing(filled: EngineServers, run: Run) -> None:
    KIND.inspector_type = Lagging
    lag = "sync always, 162 appends behind on the server that has the fewest"
    for present, expected in ((3, lag), (2, f"{lag} (a server is down)")):
        filled.running = present

        rows = [" ".join(row.split()) for row in run("status").stdout.splitlines()]

        assert expected in rows


def test_status_of_no_cluster_says_so(run: Run) -> None:
    ran = run("status")

    assert ran.exit_code == 0
    assert "penstock: the engine has no cluster of this name (cluster.name)" in ran.stdout
    assert json.loads(run("status", "--json").stdout)["found"] is False


def test_status_without_a_majority_names_what_is_wrong(filled: EngineServers, run: Run) -> None:
    filled.running = 1
    ran = run("status")

    assert ran.exit_code == 1
    assert "error: the engine in memory has no majority of its servers" in ran.stderr


def test_doctor_finds_nothing_wrong_in_a_sound_cluster(filled: EngineServers, run: Run) -> None:
    ran = run("doctor")

    assert ran.exit_code == 0, ran.output
    rows = [" ".join(row.split()) for row in ran.stdout.splitlines()]
    assert "ok engine servers 3 of 3 servers are present" in rows
    assert "ok owner n1, epoch 4" in rows
    assert "ok nodes n1, n2 there" in rows
    assert "ok versions n1 1.0, n2 1.0; format 1" in rows
    assert any(row.startswith("ok clocks n1 ") for row in rows)
    assert "ok settings 2 settings are equal on all nodes" in rows
    assert "ok damage n1 found none when it recovered the realm" in rows
    assert rows[-1] == "0 failures, 0 warnings"


def test_doctor_fails_with_the_line_to_change(filled: EngineServers, run: Run) -> None:
    filled.running = 1
    ran = run("doctor")

    assert ran.exit_code == 1
    rows = [" ".join(row.split()) for row in ran.stdout.splitlines()]
    assert "failed engine servers 1 of 3 servers are present." in rows
    assert "-> start a majority of them" in rows
    assert "failed register the engine in memory has no majority of its servers" in rows
    report = json.loads(run("doctor", "--json").stdout)
    assert not report["ok"]
    assert report["checks"][0]["remedy"] == "start a majority of them"


def test_doctor_of_no_cluster_names_the_setting(run: Run) -> None:
    ran = run("doctor")

    assert ran.exit_code == 1
    assert "the engine has no cluster 'penstock'" in ran.stdout
    assert "cluster.name (PENSTOCK_CLUSTER_NAME)" in ran.stdout


@pytest.mark.parametrize("command", ["status", "doctor"])
@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ("", "no storage engine is set; name the URL of the cluster's engine with --cluster or"),
        ("redis://a", "cluster.engine is 'redis://a'; the URL of an engine looks like nats://"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(command: str, engine: str, named: str) -> None:
    ran = CliRunner().invoke(app, ["cluster", command, "--cluster", engine])

    assert ran.exit_code == 1
    assert f"error: {named}" in ran.stderr


def test_the_inspector_of_an_engine_is_chosen_by_its_url() -> None:
    for url, kind in (("nats://a", "JetStream"), ("postgresql://a/db", "Postgres")):
        settings = load(overrides={"cluster.engine": url}).cluster
        inspector = cluster.open_inspector(settings, SystemClock())
        assert type(inspector).__name__ == f"{kind}Inspector"


# --- what the doctor says -----------------------------------------------------------------


def node(name: str, condition: str = "stands by", **more: Any) -> MemberSeen:
    member: dict[str, Any] = {
        "nonce": "",
        "version": "1.0",
        "format": 1,
        "address": "",
        "serves": {},
    }
    member["clock_ahead_s"] = 0.0
    return msgspec.convert({"node": name, "condition": condition, **member, **more}, MemberSeen)


def checks_by_name(
    *members: MemberSeen, owner: str = "n1", format: int = 1, **more: Any
) -> dict[str, Check]:
    seen = ClusterSeen(
        owner=owner,
        epoch=4,
        format=format,
        lease_left_s=None,
        members=members,
        settings=SETTINGS,
    )
    ports = [PortReached("n1", "penstock://n1:9000", "Connection refused")]
    examined = ClusterExamined(
        seen=seen, failure="", ports=ports, **{"checks": [], "clusters": ["orders"], **more}
    )
    return {check.name: check for check in checks_of("orders", examined)}


def test_an_owner_that_is_not_there_fails() -> None:
    checks = checks_by_name(node("n1", "gone"), node("n2"))
    assert checks["owner"].status == "failed"
    assert "n1 owns the realm in epoch 4, and does not renew" in checks["owner"].found
    assert checks["nodes"].found == "n2 there; n1 is gone"
    assert checks_by_name(node("n1"), owner="")["owner"].found == "no node owns the realm"


def test_a_node_that_is_alone_or_away_is_a_warning() -> None:
    assert checks_by_name(node("n1", "owner"))["nodes"].status == "warning"
    away = checks_by_name(node("n1", "owner"), node("n2"), node("n3", "silent"))["nodes"]
    assert (away.status, away.found) == ("warning", "n1, n2 there; n3 is silent")
    assert checks_by_name(node("n1", "gone"))["nodes"].status == "failed"
    assert (
        "penstock cluster remove NODE"
        in checks_by_name(node("n1", "owner"), node("n3", "gone"), node("n2"))["nodes"].remedy
    )


def test_a_drained_node_is_told() -> None:
    drained = checks_by_name(node("n1", "owner"), node("n2", "drained"))["nodes"]

    assert (drained.status, drained.found) == ("warning", "n1, n2 there; n2 is drained")


def test_settings_that_differ_fail_with_both_values() -> None:
    other_settings = {**SETTINGS, "access.mode": "off"}
    check = checks_by_name(
        node("n1", "owner", settings=SETTINGS), node("n2", settings=other_settings)
    )["settings"]

    assert check.status == "failed"
    assert check.found == "access.mode is 'off' at n2, not 'mandatory'"
    older = checks_by_name(node("n1", "owner", settings=SETTINGS), node("n2"))["settings"]
    assert (older.status, older.found) == (
        "warning",
        "not checked: n2 does not report its settings",
    )


def test_different_secrets_fail() -> None:
    checks_found = checks_by_name(node("n1", "owner", secret_name="a"), node("n2", secret_name="b"))

    assert checks_found["secret"].found == "n1 and n2 have different secrets"
    assert "secret" not in checks_by_name(
        node("n1", "owner", secret_name="a"), node("n2", secret_name="a")
    )


def test_a_node_that_could_not_serve_and_damage_of_the_owner_fail() -> None:
    checks_found = checks_by_name(
        node("n1", "owner", damages=2), node("n2", unfit="it does not see the files")
    )

    assert checks_found["node n2"].found == "it does not see the files"
    assert checks_found["damage"].status == "failed"
    assert "n1 found 2 pieces of damage" in checks_found["damage"].found
    assert (
        checks_by_name(node("n1", "gone"))["damage"].found
        == "not checked: no node serves the realm"
    )


def test_what_was_not_seen_of_the_engine_is_not_ok() -> None:
    checks = [
        EngineCheck(name="sync", finding="always on a", is_ok=True, not_checked=("b", "c")),
        EngineCheck(name="version", finding="", is_ok=True, not_checked=("a", "b", "c")),
    ]
    checks_found = checks_by_name(node("n1", "owner"), checks=checks)

    assert (checks_found["engine sync"].status, checks_found["engine sync"].found) == (
        "warning",
        "always on a; not checked: b, c",
    )
    assert checks_found["engine version"].found == "not checked: a, b, c"


def with_rooms(*rooms: int | None) -> Check:
    """Return the check of the engine's room for servers with these free bytes."""
    servers = [
        EngineServer(name=name, address="", room=room)
        for name, room in zip("abc", rooms, strict=True)
    ]
    return checks_by_name(node("n1", "owner"), servers=servers)["engine room"]


def test_the_room_of_the_engine_is_that_of_a_majority_and_a_full_server_is_named() -> None:
    assert with_rooms(8 << 30, 8 << 30, 8 << 30).status == "ok"

    one_full = with_rooms(8 << 30, 8 << 30, 1 << 20)
    assert one_full.status == "warning"
    assert one_full.found.startswith("little free space at c; the others are a majority: ")
    assert "the disk of c" in one_full.remedy

    two_full = with_rooms(8 << 30, 1 << 30, 1 << 20)
    assert two_full.status == "warning"
    assert two_full.found.startswith("a majority of the servers has room for 1.0 GiB: ")

    two_full = with_rooms(8 << 30, 2 << 20, 1 << 20)
    assert two_full.status == "failed"
    assert "the disk of b, c" in two_full.remedy


def test_the_room_of_too_few_servers_is_not_checked() -> None:
    check = with_rooms(8 << 30, None, None)

    assert check.status == "warning"
    assert check.found == "not checked: 1 of 3 servers report their free space: 8.0 GiB at a"


def test_other_clusters_of_the_engine_are_told() -> None:
    checks_found = checks_by_name(node("n1", "owner"), clusters=["ordes", "orders"])

    assert "the engine also has ordes" in checks_found["clusters"].found
    assert "engine room" not in checks_by_name(node("n1", "owner"))
    assert "clusters" not in checks_by_name(node("n1", "owner"))


def test_a_node_that_is_not_there_is_said_since_when() -> None:
    wall_us = MINUTE_US

    assert condition_text(msgspec.structs.replace(node("n1", "gone"), renewed_us=wall_us)) == (
        "gone since 1970-01-01 00:01:00Z"
    )
    assert (
        condition_text(msgspec.structs.replace(node("n1", "owner"), renewed_us=wall_us)) == "owner"
    )
    assert condition_text(node("n1", "silent")) == "silent"


def test_versions_that_differ_are_told_and_one_that_cannot_claim_fails() -> None:
    mixed = checks_by_name(node("n1", "owner"), node("n2", version="1.1"))["versions"]
    assert (mixed.status, mixed.found) == ("warning", "n1 1.0, n2 1.1")
    old = checks_by_name(node("n1", "owner", format=2), node("n2"), format=2)["versions"]
    assert old.status == "failed"
    assert old.found.startswith("n2 does not know format 2")


@pytest.mark.parametrize(
    ("ahead", "status", "finding"),
    [
        ([0.1, -0.2, 0.3], "ok", "n1 +0.0 s, n2 -0.3 s, n3 +0.2 s"),
        ([0.0, 7.0, 0.0], "failed", "n1 +0.0 s, n2 +7.0 s, n3 +0.0 s"),
        ([0.0, -7.0], "failed", "n1 +0.0 s, n2 -7.0 s"),
        ([9.0, 9.0, 9.0], "warning", "n1 +0.0 s, n2 +0.0 s, n3 +0.0 s; this machine is -9.0 s off"),
        ([None, None], "warning", "no node has renewed"),
    ],
)
def test_clocks_are_compared_with_those_of_the_other_nodes(
    ahead: list[float | None], status: str, finding: str
) -> None:
    members = [node(f"n{n}", clock_ahead_s=ahead_s) for n, ahead_s in enumerate(ahead, 1)]
    check = checks_by_name(*members)["clocks"]

    assert check.status == status
    assert check.found.startswith(finding)
    if status == "failed":
        assert check.remedy == "set the clock of n2, with NTP or chrony"


def test_a_port_that_is_not_reached_fails() -> None:
    port = checks_by_name(node("n1", "owner"))["port n1"]

    assert (port.status, port.found) == ("failed", "penstock://n1:9000: Connection refused")


def test_what_an_engine_says_is_split_from_what_to_change() -> None:
    checks = [
        EngineCheck(
            name="sync", finding="a is lazy. To fix: set sync_interval: always", is_ok=False
        ),
        EngineCheck(name="version", finding="NATS 2.15", is_ok=True),
    ]
    examined = ClusterExamined(seen=None, failure="", checks=checks, ports=[])
    checks_found = list(checks_of("orders", examined))

    assert checks_found[0] == Check(
        "engine sync", "failed", "a is lazy.", remedy="set sync_interval: always"
    )
    assert checks_found[1] == Check("engine version", "ok", "NATS 2.15")
    assert checks_found[2].status == "failed"
