"""Local channels of nodes in processes of their own, on three NATS servers, of which the majority
goes away and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from ssl import create_default_context
from urllib.request import urlopen

import pytest

import penstock
from packages.cluster.tests import processes
from packages.cluster.tests.processes import addresses, refusal
from packages.mqtt.tests.clients import connected
from packages.mqtt.tests.persistent_sessions import HOUR, back
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
    NoQuorum,
)
from penstock_testing.nats_servers import NatsServers
from penstock_testing.process import ServerProcess
from tests.access.realms import authority_in
from tests.patience import until

pytestmark = [pytest.mark.process, pytest.mark.slow]


def node(servers: NatsServers, directory: Path, *more: str) -> ServerProcess:
    return processes.node(
        servers.engine,
        directory,
        "--local-port",
        "0",
        *more,
        monitors=servers.monitors,
        environment={"PENSTOCK_CLUSTER_LOCAL_MQTT_PORT": "0"},
    )


def local_url(process: ServerProcess) -> str:
    (line,) = process.logged("local.listening")
    return str(line["url"])


def output_of(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, env=os.environ
    )
    return ran.stdout + ran.stderr


def _why_not_there(realm: penstock.Session, channel: str) -> str:
    with pytest.raises(NameDoesNotExist, match=f"{channel} is a local channel of node") as raised:
        realm.channels.get(channel)
    return str(raised.value)


@pytest.mark.spec("C5", "M13", "N2", "N8")
def test_local_channels_go_on_while_the_cluster_has_no_quorum(tmp_path: Path) -> None:
    with (
        NatsServers(tmp_path) as servers,
        node(servers, tmp_path / "n1") as one,
        node(servers, tmp_path / "n2", "--local-http-port", "0") as two,
        node(servers, tmp_path / "n3"),
        penstock.connect(addresses(two, one)) as wide,
        penstock.connect(local_url(two)) as here,
    ):
        wide.channels.create("orders", type="persistent")
        readings = here.channels.create("readings", type="persistent", cluster_wide=False)
        billing = readings.durables.create("billing", type="shared")
        with pytest.raises(NameAlreadyBound, match="orders already exists, and is cluster-wide"):
            here.channels.create("orders")
        with pytest.raises(NameAlreadyBound, match="a local channel of node n2"):
            wide.channels.create("readings")
        # the owner reads once a second where the nodes have their local channels
        until(lambda: f"node n2, at {local_url(two)}" in _why_not_there(wide, "readings"))
        until(lambda: sum(bool(node.local_url) for node in wide.cluster().nodes) == 3)
        with pytest.raises(InvalidArgument, match="at a node that serves local channels"):
            wide.channels.create("alone", cluster_wide=False)
        with pytest.raises(InvalidArgument, match="this realm has the local channels of node n2"):
            here.channels.create("everywhere", cluster_wide=True)

        assert "readings @n2" in output_of("channel", "list", "--url", addresses(one))
        made = output_of("channel", "create", "alone", "--local", "n3", "--url", addresses(one))
        assert "channel alone @n3 created" in made
        mqtt = two.logged("local.listening")[0]["mqtt"]
        with connected(mqtt, "sensor", properties=HOUR) as sensor:
            sensor.subscribe("cell/#")
        codes: list[str] = []
        wide.on_interruption(lambda error: codes.append("" if error is None else error.code))
        for number in (1, 2):
            servers.kill(number)
        until(lambda: "no-quorum" in codes)
        assert [readings.publish(b"%d" % number) for number in range(3)] == [0, 1, 2]
        late = readings.durables.create("late", type="shared")
        with billing.subscribe() as events:
            next(iter(events)).ack()
        assert (billing.info().outstanding, late.info().outstanding) == (2, 3)
        with (
            connected(mqtt, "other", properties=HOUR) as subscriber,
            back(mqtt, "sensor") as sensor,
        ):
            assert subscriber.publish("cell/7", b"21.5").reason == 0
            assert sensor.receive().payload == b"21.5"
        here.channels.get("mqtt-n2").publish(b"here", properties={"topic": "cell/8"})
        with urlopen(two.logged("local.listening")[0]["http"] + "/api/v1/channels") as answer:
            names = [item["name"] for item in json.load(answer)["items"]]
        assert names == ["mqtt-n2", "readings"]

        for number in (1, 2):
            servers.start(number)
        until(lambda: codes[-1:] == [""])
        until(lambda: is_made(here, "after"))
        assert output_of("channel", "list", "--url", addresses(one)).count("@n2") == 5


@pytest.mark.spec("N2", "N8")
@pytest.mark.parametrize(
    ("absent", "are_frozen"), [((1, 2), False), ((0, 1, 2), False), ((1, 2), True)]
)
def test_a_node_that_starts_without_the_engine_waits_for_it_with_its_local_channels(
    tmp_path: Path, absent: tuple[int, ...], are_frozen: bool
) -> None:
    with NatsServers(tmp_path) as servers:
        end, resume = (
            (servers.freeze, servers.thaw) if are_frozen else (servers.kill, servers.start)
        )
        with (
            node(servers, tmp_path / "n1") as one,
            penstock.connect(local_url(one)) as here,
        ):
            readings = here.channels.create("readings", type="persistent", cluster_wide=False)
            readings.publish(b"before")
        for number in absent:
            end(number)
        again = node(servers, tmp_path / "n1")
        again.begin()
        try:
            until(lambda: bool(again.logged("engine.waiting")))
            assert not again.url, "it neither serves nor stands by"

            for number in absent:
                resume(number)
            until(lambda: bool(again.url))
            with penstock.connect(addresses(again)) as wide:
                wide.channels.create("orders", type="persistent").publish(b"after")
            with penstock.connect(local_url(again)) as here:
                assert [event.data for event in here.channels.get("readings").browse()] == [
                    b"before"
                ]
        finally:
            again.__exit__(None, None, None)


@pytest.mark.spec("N9")
def test_joins_into_the_cluster_bring_each_event_once_over_kills_of_the_node_and_the_owner(
    tmp_path: Path,
) -> None:
    authority = authority_in(tmp_path)
    (tmp_path / "settings.toml").write_text(
        f"[listen]\ntls_certificate = '{tmp_path}/realm.pem'\ntls_key = '{tmp_path}/realm.key'\n"
    )
    safe = ("--settings", f"{tmp_path}/settings.toml")
    ca = f"?ca={authority.file}"
    local = ("--local-port", "0", "--local-http-port", "0", *safe)
    with (
        NatsServers(tmp_path) as servers,
        node(servers, tmp_path / "n1", *local) as one,
        node(servers, tmp_path / "n2", *local) as two,
        node(servers, tmp_path / "n3", *local),
        penstock.connect(safely(addresses(two, one)) + ca) as wide,
    ):
        orders = wide.channels.create("orders", type="persistent")
        with penstock.connect(local_url(two) + ca) as here:
            readings = here.channels.create("readings", type="persistent")
            here.joins.create("readings", "orders", selector="n < 200")
            for number in range(100):
                readings.publish(b"%d" % number, properties={"n": number})
        two.kill()
        with (
            node(servers, tmp_path / "n2", *local) as again,
            penstock.connect(local_url(again) + ca) as here,
        ):
            readings = here.channels.get("readings")
            for number in range(100, 250):
                if number == 150:
                    one.kill()
                readings.publish(b"%d" % number, properties={"n": number})
            until(lambda: not here.joins.list()[0].waiting)

            assert [event.data for event in orders.browse()] == [b"%d" % n for n in range(200)]
            listed = output_of("join", "list", "--url", local_url(again) + ca).splitlines()
            assert listed[0].split() == [
                "source",
                "destination",
                "type",
                "copied",
                "dropped",
                "waiting",
                "selector",
            ]
            assert listed[1].split()[:3] == ["readings", "orders", "join"]
            assert listed[1].split()[5:] == ["0", "n", "<", "200"]
            url, trusting = again.logged("local.listening")[0]["http"], create_default_context()
            trusting.load_verify_locations(authority.file)
            with urlopen(url + "/api/v1/joins", context=trusting) as answer:
                (item,) = json.load(answer)["items"]
            assert (item["leads_out"], item["waiting"], item["ending"]) == (True, 0, False)
            with urlopen(url + "/metrics", context=trusting) as answer:
                text = answer.read().decode()
            assert 'penstock_outbox_events{from="readings",to="orders"} 0.0' in text


def safely(url: str) -> str:
    return url.replace("penstock://", "penstocks://")


def is_made(session: penstock.Session, name: str) -> bool:
    """Whether the channel is there now."""
    with suppress(NoQuorum, NameAlreadyBound):  # asked before the engine is back for this node
        session.channels.create(name)
    return name in session.channels.list()


@pytest.mark.spec("N8")
def test_a_port_for_http_needs_local_channels(tmp_path: Path) -> None:
    why = refusal(processes.node("nats://127.0.0.1:1", tmp_path / "n1", "--local-http-port", "0"))
    assert "cluster.local_http_port is set, and cluster.local_port is not" in why
