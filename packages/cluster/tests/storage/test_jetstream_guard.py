"""An engine that would lose what it acknowledges is refused, with the line to change."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from msgspec import structs

from penstock_cluster.storage.jetstream.engine import JetStreamEngine
from penstock_cluster.storage.jetstream.guard import (
    ServerState,
    are_electing,
    are_joining,
    check_majority,
    check_servers,
    monitors_of,
    read_server,
    room_of,
    rooms_of,
    version_of,
)
from penstock_cluster.storage.jetstream.stream import (
    REPLICATED,
    StreamInfo,
    StreamState,
    check_settings,
)
from penstock_core.vocabulary.errors import NoQuorum, Unavailable
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.loop import pass_time, simulated
from penstock_testing.process import search_path
from tests.contract.nats_monitoring import JSZ, VARZ, Said, monitoring
from tests.loops import the_loop

AT_ONCE = """
import importlib, sys, threading
from penstock_cluster.storage.jetstream import guard

sys.setswitchinterval(1e-6)
answers = {
    "varz": b'{"server_name": "n0", "cluster": {"name": "tests"}}',
    "jsz?config=true": b'{"meta_cluster": {"leader": "n0", "replicas": [{"name": "n1"}]}}',
}
for _ in range(20):
    importlib.reload(guard)  # so that nothing is known yet of the types of the answers
    guard._fetch = lambda url, tls: answers[url.rpartition("/")[2]]
    together, found = threading.Barrier(3), []

    def read():
        together.wait()
        found.append(guard.read_server("http://n0:8222").peers)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [frozenset({"n0", "n1"})] * 3, found
"""
NAMES = ("n0", "n1", "n2")
FINE = [
    ServerState(
        f"http://{name}:8222",
        name=name,
        version="2.15.1",
        syncs_always=True,
        is_clustered=True,
        sync_interval_s=120.0,
        leader="n1",
        peers=frozenset(NAMES),
        cluster_size=3,
    )
    for name in NAMES
]


def absent(server: ServerState) -> ServerState:
    return ServerState(server.monitor, failure="connection refused")


def test_three_servers_that_keep_everything_are_fine() -> None:
    check_servers(FINE)
    check_majority(FINE)


def with_room(*rooms: int) -> list[ServerState]:
    return [
        structs.replace(server, free_bytes=room) for server, room in zip(FINE, rooms, strict=True)
    ]


def test_the_room_is_that_of_a_majority() -> None:
    assert room_of(with_room(0, 43 << 30, 41 << 30)) == 41 << 30
    assert room_of(with_room(0, 0, 43 << 30)) == 0


def test_a_server_that_is_down_has_no_room_and_without_a_majority_none_is_known() -> None:
    full, roomy, down = with_room(0, 43 << 30, 0)

    assert room_of([full, roomy, absent(down)]) == 0
    assert room_of([roomy, absent(full), absent(down)]) is None
    assert rooms_of([roomy, absent(full), down]) == {roomy.name: 43 << 30, down.name: 0}


def test_one_server_may_be_down() -> None:
    servers = [*FINE[:2], absent(FINE[2])]

    check_servers(servers)
    check_majority(servers)


def test_a_majority_has_to_say_how_it_is_configured() -> None:
    with pytest.raises(Unavailable) as refused:
        check_majority([FINE[0], absent(FINE[1]), absent(FINE[2])])

    assert "only 1 of the engine's 3 servers can be read" in str(refused.value)
    assert "http_port: 8222 in nats-server.conf of n1, n2" in str(refused.value)
    assert "http://n2:8222: connection refused" in str(refused.value)


def test_nobody_can_be_read() -> None:
    with pytest.raises(Unavailable, match=r"only 0 of .* nats-server\.conf of each server"):
        check_majority([absent(server) for server in FINE])


def test_one_monitor_read_three_times_is_no_majority() -> None:
    with pytest.raises(Unavailable, match="can be read"):
        check_majority([FINE[0]] * 3)


@pytest.mark.parametrize("version", ["2.9.10", "2.13.99", "1.20.0"])
def test_an_old_server_is_refused(version: str) -> None:
    servers = [FINE[0], structs.replace(FINE[1], version=version), FINE[2]]

    with pytest.raises(
        Unavailable, match=rf"server n1 .* is NATS {version}, .*install nats-server 2\.14 or newer"
    ):
        check_servers(servers)


@pytest.mark.parametrize("version", ["2.14.0", "2.14.0-RC.1", "2.15.1", "3.0"])
def test_a_new_server_is_taken(version: str) -> None:
    check_servers([structs.replace(server, version=version) for server in FINE])


@pytest.mark.parametrize(
    ("interval_s", "shown"),
    [(120.0, "every 120 s"), (0.5, "every 0.5 s"), (2_000_000.0, "every 2,000,000 s")],
)
def test_a_server_that_syncs_now_and_then_is_refused(interval_s: float, shown: str) -> None:
    lazy = structs.replace(FINE[2], syncs_always=False, sync_interval_s=interval_s)
    servers = [*FINE[:2], lazy]

    with pytest.raises(Unavailable) as refused:
        check_servers(servers)

    assert "server n2 (http://n2:8222)" in str(refused.value)
    assert shown in str(refused.value)
    assert "sync_interval: always within jetstream { ... } of its nats-server.conf" in str(
        refused.value
    )


def test_a_single_server_is_no_engine() -> None:
    alone = structs.replace(
        FINE[0], cluster_size=0, peers=frozenset({"n0"}), is_clustered=False, leader=""
    )

    with pytest.raises(Unavailable, match=r"is one of 1 servers, and 3 have .*cluster \{ name"):
        check_servers([alone])


def test_two_servers_are_no_engine() -> None:
    two = [structs.replace(server, cluster_size=2) for server in FINE[:2]]

    with pytest.raises(Unavailable, match="is one of 2 servers, and 3 have"):
        check_servers(two)


JOINING = [structs.replace(FINE[0], cluster_size=2, peers=frozenset(NAMES[:2])), *FINE[1:]]
"""The first leader has counted one of the others so far."""


def test_servers_that_are_missing_in_what_the_leader_says_are_joining() -> None:
    two = [structs.replace(server, cluster_size=2) for server in FINE[:2]]

    assert are_joining(JOINING)
    assert not are_joining(FINE)
    assert not are_joining([*FINE[:2], absent(FINE[2])])
    assert not are_joining(two), "they are all there are"
    assert not are_joining([absent(server) for server in FINE])


ELECTING = [structs.replace(server, leader="") for server in FINE]
"""The servers are connected, and have not elected a leader yet."""


def test_servers_of_which_none_knows_a_leader_are_electing_one() -> None:
    alone = [structs.replace(server, is_clustered=False, leader="") for server in FINE]

    assert are_electing(ELECTING)
    assert are_electing([*ELECTING[:2], absent(FINE[2])])
    assert not are_electing([*ELECTING[:2], FINE[2]])
    assert not are_electing([absent(server) for server in FINE])
    assert not are_electing(alone), "nobody is to lead them"


class Answers:
    """The servers of an engine, as their monitoring shows them look after look."""

    def __init__(self, *looks: list[ServerState]) -> None:
        self._coming = [state for servers in looks for state in servers]

    async def read(self, call: object) -> ServerState:
        return self._coming.pop(0)

    @property
    def are_read(self) -> bool:
        return not self._coming

    async def open(self) -> None:
        async def connect(servers: object, on_reconnect: object) -> Any:
            return self

        engine = JetStreamEngine(
            ["nats://n0"],
            monitors=[server.monitor for server in FINE],
            clock=SystemClock(),
            offload=self.read,  # type: ignore[arg-type]  # nobody is asked
            connect=connect,
        )
        await engine.open()

    async def close(self) -> None:
        """No server is connected."""


@simulated
async def test_servers_that_are_joining_are_looked_at_again() -> None:
    servers = Answers(JOINING, JOINING, FINE)

    await servers.open()

    assert servers.are_read


@simulated
async def test_servers_that_are_electing_a_leader_are_looked_at_again() -> None:
    servers = Answers(ELECTING, ELECTING, FINE)

    await servers.open()

    assert servers.are_read


@simulated
async def test_servers_without_a_leader_are_not_looked_at_for_ever() -> None:
    servers = Answers(*[ELECTING] * 100)

    await servers.open()

    assert not servers.are_read, "what is asked of them waits for a leader, too"


@simulated
async def test_servers_that_never_join_are_refused() -> None:
    servers = Answers(*[JOINING] * 100)

    with pytest.raises(Unavailable, match="is one of 2 servers, and 3 have"):
        await servers.open()

    assert not servers.are_read, "nobody looks for ever"


class FrozenAnswers(Answers):
    """Two of the servers are frozen, so that each look waits for them."""

    def __init__(self) -> None:
        super().__init__(*[[FINE[0], absent(FINE[1]), absent(FINE[2])]] * 100)

    async def read(self, call: object) -> ServerState:
        await pass_time(2.0)
        return await super().read(call)


@simulated
async def test_frozen_servers_are_waited_for_no_longer_than_dead_ones() -> None:
    began_s = the_loop().time()

    with pytest.raises(NoQuorum, match="start the others"):
        await FrozenAnswers().open()

    assert the_loop().time() - began_s < 25


@simulated
async def test_what_is_wrong_with_settled_servers_is_said_at_the_first_look() -> None:
    lazy = [structs.replace(server, syncs_always=False) for server in FINE]
    servers = Answers(lazy, FINE)

    with pytest.raises(Unavailable, match="sync_interval: always"):
        await servers.open()

    assert not servers.are_read


def test_versions_are_compared_by_their_numbers() -> None:
    assert version_of("2.9.10") < version_of("2.14.0") < version_of("2.15.1-beta.2")


def test_monitoring_is_asked_on_its_usual_port_once_a_host() -> None:
    servers = ["nats://a:4222", "tls://b", "nats://[::1]:4222", "nats://a:4223"]

    assert monitors_of(servers) == ["http://a:8222", "http://b:8222", "http://[::1]:8222"]


@pytest.mark.parametrize(
    ("monitor", "failure"),
    [
        ("file:///etc", "monitoring is read over http:// or https://"),
        ("http://127.0.0.1:1", "Connection refused"),
    ],
)
def test_what_cannot_be_read_says_why(monitor: str, failure: str) -> None:
    state = read_server(monitor)

    assert state.failure == failure
    assert state.monitor == monitor


def read_as(varz: Said, jsz: Said) -> ServerState:
    with monitoring(varz, jsz) as url:
        return read_server(url)


@pytest.mark.slow
def test_a_server_is_what_its_monitoring_says() -> None:
    state = read_as(VARZ, JSZ)

    assert structs.replace(state, monitor=FINE[0].monitor) == structs.replace(
        FINE[0], free_bytes=900
    )


@pytest.mark.slow
def test_a_server_that_is_starting_says_nothing_yet() -> None:
    """It answers before it has found the others, and before it has read its streams."""
    assert "has no JetStream, or starts it now" in read_as(VARZ, {"disabled": True}).failure
    assert "looks for the others" in read_as(VARZ, {**JSZ, "meta_cluster": None}).failure
    assert read_as({**VARZ, "cluster": {}}, {**JSZ, "meta_cluster": None}).failure == ""


@pytest.mark.slow
def test_what_is_no_monitoring_is_no_server() -> None:
    assert read_as(VARZ, {"config": "of something else"}).failure


WANTED = {**REPLICATED, "subjects": ["s.frames"]}


def made(**other: object) -> StreamInfo:
    """A stream as the server describes it: what is not set is left out."""
    config = {name: value for name, value in WANTED.items() if value is not None}
    return StreamInfo(
        {"name": "s", **config, "metadata": {"_nats.ver": "2.15.1"}, **other}, StreamState()
    )


def test_a_stream_as_it_was_made_is_fine() -> None:
    check_settings(made(), WANTED)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"num_replicas": 1},
            "num_replicas is 1, not 3. To fix: nats stream edit s --replicas=3",
        ),
        ({"max_age": 10}, "max_age is 10, not 0. To fix: nats stream edit s --max-age=0"),
        ({"max_bytes": 9}, "To fix: nats stream edit s --max-bytes=-1"),
        (
            {"discard": "old"},
            "discard is old, not new. To fix: nats stream edit s --discard=new",
        ),
        (
            {"storage": "memory"},
            "storage is memory, not file. To fix: correct storage in the configuration",
        ),
        ({"deny_delete": False}, "deny_delete is False, not True"),
        ({"allow_direct": True}, "allow_direct is True, not False"),
        ({"subjects": ["s.frames", "x"]}, "To fix: nats stream edit s --subjects=s.frames"),
        ({"mirror": {"name": "other"}}, "mirror is {'name': 'other'}, not None"),
        (
            {"num_replicas": 1, "max_age": 10, "sealed": True},
            "edit s --replicas=3 --max-age=0; correct sealed in the configuration of the stream",
        ),
    ],
)
def test_a_stream_with_other_settings_is_refused(other: dict[str, object], text: str) -> None:
    with pytest.raises(Unavailable) as refused:
        check_settings(made(**other), WANTED)

    assert "stream s has other settings" in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.process
def test_servers_can_be_read_by_several_threads_at_once() -> None:
    """In a process of its own: where that goes wrong, it ends the process."""
    environment = {**os.environ, "PYTHONPATH": search_path()}

    done = subprocess.run([sys.executable, "-c", AT_ONCE], env=environment, check=False)

    assert done.returncode == 0
