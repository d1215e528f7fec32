"""An event that AMQP cannot say in full comes without what cannot be said, and takes nothing else
with it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import penstock
from penstock.columns.events.event import Event
from penstock.frontends.amqp import incoming, message_header
from penstock.frontends.amqp.message_header import KNOWN_CHARACTERS_MAX, PLAIN, PROPERTIES
from penstock.frontends.amqp.single_message import SingleMessages
from penstock.wire.amqp.sections import entries, sections_of
from penstock.wire.amqp.types import Symbol, written
from tests.frontends.amqp.clients import texts
from tests.frontends.amqp.conftest import Connect
from tests.frontends.amqp.test_messages import NOW_MS, message, of_native
from tests.frontends.http.asking import Web


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


POISON = {
    "amqp, nested": {"amqp": '{"zz":' + "[" * 60_000 + "]" * 60_000 + "}"},
    "amqp, 101 levels": {"amqp": '{"zz":' + "[" * 101 + "]" * 101 + "}"},
    "mqtt, nested": {"mqtt": '{"zz":' + '{"a":' * 60_000 + "0" + "}" * 60_001},
    "annotations that end too early": {
        "amqp": f'{{"annotations":"{encoded(bytes.fromhex("c10202b1"))}"}}'
    },
    "annotations with an impossible key": {
        "amqp": f'{{"annotations":"{encoded(bytes.fromhex("c103024540"))}"}}'
    },
    "application properties that are a list": {
        "amqp": f'{{"application_properties":"{encoded(written([1]))}"}}'
    },
    "a type that the value exceeds": {"amqp": '{"types":{"huge":"float"}}'},
}


@pytest.mark.parametrize("headers", POISON.values(), ids=list(POISON))
def test_headers_that_cannot_be_read_cut_no_receiver(
    session: penstock.Session, connect: Connect, headers: dict[str, str]
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push(b"poisoned", tag="t", properties={"huge": 1e300}, headers=headers)
    jobs.push(b"next")

    assert texts(connect().receiver("jobs"), 2) == [b"poisoned", b"next"]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("levels", "is_said"), [(98, True), (99, False)])
def test_a_property_nested_deeper_than_a_message_may_be_is_left_out(
    levels: int, is_said: bool
) -> None:
    event = Event(b"data", properties={"deep": nested(levels), "n": 3})

    sections = sections_of(of_native(event))

    assert entries(sections.application_properties) == {"n": 3}
    assert (PROPERTIES in entries(sections.message_annotations)) is is_said


def test_what_was_left_out_is_counted(
    realm: penstock.Realm, session: penstock.Session, connect: Connect
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push(b"x", headers={"amqp": '{"content_encoding":"é"}'})

    assert texts(connect().receiver("jobs"), 1) == [b"x"]

    metrics = Web(realm.listen_http()).ask("GET", "/metrics").data.decode()
    assert 'penstock_left_out_parts_total{protocol="amqp"} 1.0' in metrics


def test_sizes_of_data_sections_cannot_multiply_the_data() -> None:
    text = '{"sizes":[5,-5,5]}'

    assert message_header.read(text) is not PLAIN
    assert message_header.read(text).sizes == ()


def test_long_headers_are_not_remembered() -> None:
    message_header._known.clear()
    message_header._known_of_mqtt.clear()
    long = "x" * KNOWN_CHARACTERS_MAX

    for number in range(50):
        assert message_header.read(f'{{"to":"{long}{number}"}}').to == f"{long}{number}"
        said = message_header.read_mqtt(f'{{"content_type":"{long}{number}"}}')
        assert said.content_type == f"{long}{number}"

    assert not message_header._known
    assert not message_header._known_of_mqtt


def test_what_senders_say_at_length_is_not_remembered() -> None:
    before = len(incoming._residues_known)

    for number in range(50):
        annotations = {Symbol("x-opt-note"): "x" * 10_000 + str(number)}
        _, unusable = incoming.batches_of([message(annotations=annotations)], NOW_MS, "me")
        assert not unusable

    assert len(incoming._residues_known) == before


def test_a_link_remembers_no_data_of_its_last_message() -> None:
    lone = SingleMessages()
    large = message(body=b"\x00\x53\x75" + written(bytes(20_000)), application={"n": 1})

    assert lone.body(large, NOW_MS, "") is not None

    template = lone._like
    assert template is not None
    assert template.row.data == b""
    assert all(not isinstance(value, bytes) or len(value) < 1_000 for value in template.values)
    again = lone.body(large, NOW_MS, "")
    assert again is not None
    assert again.weight > 20_000
