"""``penstock topic``."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import penstock
from packages.mqtt.tests.clients import connected
from penstock_mqtt.topic_commands import counted_by_level
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from tests.patience import until

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    url = realm.listen_mqtt()
    with connected(url, "plant") as client:
        for topic in ("plant/1/temp", "plant/1/state", "plant/2/temp", "office"):
            client.publish(topic, b"21", retain=True)
        client.publish("plant/1/state", b"", retain=True)
    return url


def test_topics_are_counted_level_by_level() -> None:
    assert counted_by_level(["a/1/x", "a/1/y", "a", "b/2"], 2) == [
        ("a", 1),
        ("a/#", 2),
        ("a/1/#", 2),
        ("b/#", 1),
        ("b/2", 1),
    ]


@pytest.mark.usefixtures("url")
def test_the_list_is_of_the_topics_for_which_something_is_retained(penstock_command: Run) -> None:
    printed = penstock_command("topic", "list", "plant/#", "--format", "json")

    assert json.loads(printed.stdout) == [
        {"topic": "plant/#", "retained": 2},
        {"topic": "plant/1/#", "retained": 1},
        {"topic": "plant/2/#", "retained": 1},
    ]


@pytest.mark.usefixtures("url")
def test_what_is_retained_is_printed_by_filter(penstock_command: Run) -> None:
    printed = penstock_command("topic", "retained", "plant/+/temp", "--format", "json")

    topics = [json.loads(line)["properties"]["topic"] for line in printed.stdout.splitlines()]
    assert topics == ["plant/1/temp", "plant/2/temp"]


@pytest.mark.usefixtures("url")
def test_what_is_published_from_now_on_is_printed_by_filter(
    penstock_command: Run, session: penstock.Session
) -> None:
    topics = session.channels.get("mqtt")

    def published() -> bool:
        topics.publish(b"1", properties={"topic": "b"})
        topics.publish(b"2", properties={"topic": "a/1"})
        return running.done()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            penstock_command, "topic", "tail", "a/+", "--count", "1", "--format", "json"
        )
        until(published)

    (line,) = running.result().stdout.splitlines()
    assert json.loads(line)["properties"]["topic"] == "a/1"


def test_sessions_are_listed_with_what_waits_for_them(penstock_command: Run, url: str) -> None:
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(url, "meter", properties=hour, clean_start=False) as client:
        client.subscribe("plant/#", qos=1, retain_handling=2)
    with connected(url, "other") as client:
        client.publish("plant/1/temp", b"22")

    until(lambda: b'"connected":true' not in _sessions(penstock_command).replace(" ", "").encode())
    assert json.loads(_sessions(penstock_command)) == [
        {
            "client": "meter",
            "user": "anonymous@127.0.0.1",
            "connected": False,
            "filter": "plant/#",
            "qos": 1,
            "waiting": 1,
        }
    ]


@pytest.mark.spec("M6")
def test_a_session_is_ended_by_its_client_id(penstock_command: Run, url: str) -> None:
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(url, "pump-7", properties=hour, clean_start=False) as client:
        client.subscribe("pumps/#")

        printed = penstock_command("topic", "end", "pump-7")

        assert printed.exit_code == 0
        assert "the session of client pump-7 has ended" in printed.stderr
        assert client.receive().reason == Reason.ADMINISTRATIVE_ACTION
    assert json.loads(_sessions(penstock_command)) == []
    again = penstock_command("topic", "end", "pump-7")
    assert again.exit_code != 0
    assert "has no session" in again.stderr


@pytest.mark.spec("M12")
def test_channels_with_topics_of_their_own_are_counted_in_and_named(
    penstock_command: Run, session: penstock.Session, url: str
) -> None:
    session.channels.create("temperatures", topics=["plant/{line}/temp"])
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(url, "meter", properties=hour, clean_start=False) as client:
        client.subscribe("plant/#", qos=1, retain_handling=2)
    with connected(url, "other") as client:
        client.publish("plant/1/temp", b"22")
        client.publish("plant/1/state", b"on")
        client.publish("plant/9/temp", b"23", retain=True)

    (session_row,) = json.loads(_sessions(penstock_command))
    assert (session_row["filter"], session_row["waiting"]) == ("plant/#", 3)
    listed = penstock_command("topic", "list", "plant/9/#", "--depth", "3", "--format", "json")
    assert {"topic": "plant/9/temp", "retained": 1} in json.loads(listed.stdout)

    tail = ("topic", "tail", "plant/1/+", "--timeout", "0.01")
    elsewhere = penstock_command(*tail)
    assert (
        "channel temperatures also has topics that match plant/1/+: use --channel temperatures"
        in elsewhere.stderr
    )
    assert "--channel" not in penstock_command("topic", "tail", "a/#", "--timeout", "0.01").stderr

    def published() -> bool:
        channel.publish(b"1", properties={"line": "2"})
        channel.publish(b"2", properties={"line": "1"})
        return running.done()

    channel = session.channels.get("temperatures")
    arguments = (*tail[:3], "--channel", "temperatures", "--count", "1", "--format", "json")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(penstock_command, *arguments)
        until(published)
    assert json.loads(running.result().stdout.splitlines()[0])["properties"] == {"line": "1"}


def _sessions(penstock_command: Run) -> str:
    return penstock_command("topic", "sessions", "--format", "json").stdout


@pytest.mark.parametrize("verb", ["list", "tail", "retained"])
def test_what_is_no_filter_is_refused(penstock_command: Run, verb: str) -> None:
    refused = penstock_command("topic", verb, "a/#/b")

    assert refused.exit_code == 2
    assert "the wildcard # must be the last level" in " ".join(refused.stderr.split())
