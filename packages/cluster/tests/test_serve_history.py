"""Sealed history of nodes in processes of their own, on three NATS servers, of which the majority
goes away and comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import penstock
from packages.cluster.tests import processes
from packages.cluster.tests.processes import addresses, refusal
from penstock_core.vocabulary.errors import NoQuorum, PenstockError
from penstock_testing.nats_servers import NatsServers
from penstock_testing.process import ServerProcess
from tests.patience import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 300


def node(servers: NatsServers, directory: Path, blobs: str) -> ServerProcess:
    return processes.node(
        servers.engine,
        directory,
        monitors=servers.monitors,
        environment={
            "PENSTOCK_CLUSTER_BLOBS": blobs,
            "PENSTOCK_CLUSTER_HISTORY_PORT": "0",
            "PENSTOCK_CLUSTER_HISTORY_HTTP_PORT": "0",
            "PENSTOCK_STORAGE_SNAPSHOT_INTERVAL_S": "1",
        },
    )


def shown(process: ServerProcess) -> dict[str, Any]:
    """Return the log line of a node that has begun to serve sealed history."""
    documents: list[dict[str, Any]] = []

    def is_shown() -> bool:
        documents[:] = process.logged("history.shown")
        return bool(documents)

    until(is_shown)
    return documents[-1]


@pytest.mark.spec("N10")
@pytest.mark.parametrize("place", ["shared", "engine"])
def test_sealed_history_is_read_while_there_is_no_quorum(tmp_path: Path, place: str) -> None:
    blobs = (tmp_path / "files").as_uri() if place == "shared" else "engine"
    with (
        NatsServers(tmp_path) as servers,
        node(servers, tmp_path / "n1", blobs) as one,
        node(servers, tmp_path / "n2", blobs) as two,
        penstock.connect(addresses(one, two)) as session,
    ):
        orders = session.channels.create("orders", storage={"events_per_spindle": 100})
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(EVENTS)])
        expiring = session.channels.create("short", ttl=1_500)
        until(lambda: orders.info().storage.sealed_files == 3)
        snapshots = len(one.logged("realm.snapshot_taken"))
        expiring.publish(b"soon gone")
        until(lambda: len(one.logged("realm.snapshot_taken")) > snapshots)
        codes: list[str] = []
        session.on_interruption(lambda error: codes.append("" if error is None else error.code))
        for number in (1, 2):
            servers.kill(number)
        until(lambda: "no-quorum" in codes)

        node_with_it = two if place == "shared" else one
        history = shown(node_with_it)
        assert (history["left_out"], history["as_of_us"] > 0) == (0, True)
        with penstock.connect(str(history["url"])) as reading:
            read_only(reading)
        over_http(str(history["http"]))

        for number in (1, 2):
            servers.start(number)
        until(lambda: codes[-1:] == [""])
        assert orders.publish(b"and on") == EVENTS
        until(lambda: bool(node_with_it.logged("history.ended")))
        with pytest.raises(PenstockError):
            penstock.connect(str(history["url"]), reconnect_timeout=0.1)


def read_only(reading: penstock.Session) -> None:
    """Everything can be read, and nothing else is done."""
    orders = reading.channels.get("orders")
    assert [event.data for event in orders.browse()] == [b"%d" % n for n in range(EVENTS)]
    assert list(reading.channels.get("short").browse()) == []
    with pytest.raises(NoQuorum, match=r"sealed history as of .* the newest events are missing"):
        orders.publish(b"x")
    with pytest.raises(NoQuorum):
        reading.channels.create("more")
    with pytest.raises(NoQuorum):
        orders.durables.create("billing")
    with pytest.raises(NoQuorum), orders.subscribe() as events:
        next(iter(events))


def over_http(url: str) -> None:
    with urlopen(f"{url}/api/v1/channels/orders/events?limit=2") as answer:
        items = json.load(answer)["items"]
    assert [item["event_id"] for item in items] == [0, 1]
    with urlopen(f"{url}/api/v1/cluster") as answer:
        assert json.load(answer)["history_us"] > 0
    with urlopen(f"{url}/api/v1/realm") as answer:
        assert "sealed history as of" in json.load(answer)["name"]
    request = Request(
        f"{url}/api/v1/channels/orders/events",
        data=json.dumps({"events": [{"text": "x"}]}).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(request)
    assert refused.value.code == 503
    assert json.load(refused.value)["error"]["code"] == "no-quorum"


@pytest.mark.spec("N10")
def test_a_port_for_http_needs_one_for_history(tmp_path: Path) -> None:
    environment = {"PENSTOCK_CLUSTER_HISTORY_HTTP_PORT": "0"}
    why = refusal(processes.node("nats://127.0.0.1:1", tmp_path / "n1", environment=environment))
    assert "cluster.history_http_port is set, and cluster.history_port is not" in why
