"""The outcome ``modified``, frame by frame (AMQP 1.0, messaging, 3.4.5)."""

from __future__ import annotations

import time
from typing import Any

import proton
import pytest

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Dial
from packages.amqp.tests.frames import (
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    MODIFIED,
    NO,
    NULL,
    TRANSFER,
    YES,
    Raw,
    frame_of,
    opened,
    performative,
    receiver,
    terminus,
)
from packages.amqp.tests.frames import flow as credit
from packages.amqp.tests.peers import Peer
from packages.amqp.tests.serving import service_of
from penstock_amqp.modified import BYTES_MAX, Modifications, added_by, annotated
from penstock_amqp.wire.sections import (
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    entries,
    fields,
    section,
    sections_of,
)
from penstock_amqp.wire.types import (
    Decimal,
    Described,
    Int,
    Symbol,
    UByte,
    UInt,
    ULong,
    encode,
    encode_symbols,
)

JOBS = terminus(0x28, "jobs", capability="queue")


@pytest.fixture
def peers(dial: Dial) -> tuple[Peer, Peer]:
    """Each with a link to a queue, and no credit."""
    two_peers = dial(), dial()
    for peer, name in zip(two_peers, ("one", "other"), strict=True):
        peer.say(opened(name) + receiver("r", 0, JOBS, credit=0))
        peer.next(ATTACH)
    return two_peers


def modified(
    number: int,
    *,
    failed: bool = False,
    undeliverable: bool = False,
    annotations: dict[Any, Any] | None = None,
) -> bytes:
    added = NULL if annotations is None else encode(annotations)
    state = performative(MODIFIED, YES if failed else NO, YES if undeliverable else NO, added)
    return frame_of(DISPOSITION, True, UInt(number), UInt(number), True, Raw(state))


def message_in(transfer: Any) -> bytes:
    """Return the message of a transfer: the bytes after the performative."""
    raw: bytes = transfer.raw
    begins = [
        raw.index(section_start)
        for section_start in (b"\x00\x53\x70", b"\x00\x53\x75")
        if section_start in raw
    ]
    return raw[min(begins) :]


# --- undeliverable here ----------------------------------------------------------------------


@pytest.mark.parametrize("failed", [False, True])
def test_what_is_undeliverable_here_is_for_others(
    peers: tuple[Peer, Peer], session: penstock.Session, failed: bool
) -> None:
    one, other_peer = peers
    jobs = session.queues.get("jobs")
    one.say(credit(0, 5))
    jobs.push(b"poison")
    assert b"poison" in one.next(TRANSFER).raw
    one.say(modified(0, failed=failed, undeliverable=True))
    jobs.push(b"food")
    assert b"food" in one.next(TRANSFER).raw, "and not the poison, which it has credit for"
    other_peer.say(credit(0, 5))

    transfer = other_peer.next(TRANSFER)
    assert b"poison" in transfer.raw
    header = header_of(transfer)
    assert header[4:] == ([UInt(1)] if failed else [])


def header_of(delivery: Any) -> list[Any]:

    return fields(sections_of(message_in(delivery)).header)


def test_it_is_for_another_link_of_the_same_connection_too(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    session.queues.get("jobs").push(b"poison")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, undeliverable=True))

    one.say(receiver("another", 1, JOBS, credit=1))

    assert b"poison" in one.next(TRANSFER).raw


def test_it_is_for_native_readers_and_in_nobodys_hands(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.push(b"poison")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, failed=True, undeliverable=True))

    event = jobs.pop(timeout=WAIT_S)

    assert event is not None
    assert (event.data, event.redelivery_count) == (b"poison", 1)


@pytest.mark.parametrize("kind", ["shared", "serial", "shared_queued", "exclusive", "priority"])
def test_of_a_durable_it_is_for_its_next_client(
    dial: Dial, session: penstock.Session, kind: penstock.DurableType
) -> None:
    """Exclusive and priority durables have one client at a time."""
    news = session.channels.create("news", engine="jms")
    news.durables.create("me:sub", type=kind)
    news.publish(b"poison")
    is_shared = kind not in ("exclusive", "priority")
    source = durable_source("news", "topic", *["shared"] * is_shared)
    one, other_peer = dial(), dial()
    one.say(opened("me") + receiver("sub", 0, source, credit=5))
    assert b"poison" in one.next(TRANSFER).raw
    one.say(modified(0, undeliverable=True))
    if not is_shared:
        one.say(frame_of(DETACH, UInt(0), False))
        one.next(DETACH)
    other_peer.say(opened("me") + receiver("sub", 0, source, credit=5))

    assert b"poison" in other_peer.next(TRANSFER).raw


def durable_source(address: str, *capabilities: str) -> Raw:
    values = [encode(address), encode(UInt(2)), encode(Symbol("never")), *[NULL] * 7]
    return Raw(performative(0x28, *values, encode_symbols(list(capabilities))))


# --- annotations -----------------------------------------------------------------------------


def test_annotations_are_merged_into_the_message_as_it_comes_again(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    """Other receivers find them, and what they add; what was there has the new value."""
    one, other_peer = peers
    session.queues.get("jobs").push(b"a", tag="kept")
    one.say(credit(0, 1))
    one.next(TRANSFER)
    first = {Symbol("x-why"): "no paper", Symbol("x-tries"): Int(1), Symbol("x-list"): [1, None]}
    one.say(modified(0, undeliverable=True, annotations=first))
    other_peer.say(credit(0, 1))
    assert annotations_of(other_peer.next(TRANSFER)) == {
        Symbol("x-opt-penstock-tag"): "kept",
        **first,
    }
    again = {Symbol("x-tries"): Int(2), Symbol("x-more"): ULong(7)}
    other_peer.say(modified(0, failed=True, annotations=again) + credit(0, 2))

    transfer = other_peer.next(TRANSFER)
    assert annotations_of(transfer) == {Symbol("x-opt-penstock-tag"): "kept", **first, **again}


def annotations_of(delivery: Any) -> dict[Any, Any]:
    return entries(sections_of(message_in(delivery)).message_annotations)


def test_a_subscriber_of_a_topic_finds_what_it_has_added(
    dial: Dial, session: penstock.Session
) -> None:
    news = session.channels.create("news", engine="jms")
    peer = dial()
    peer.say(opened() + receiver("r", 0, terminus(0x28, "news", capability="topic"), credit=5))
    peer.next(ATTACH)
    news.publish(b"a")
    peer.next(TRANSFER)
    peer.say(modified(0, annotations={Symbol("x"): 1}))

    assert annotations_of(peer.next(TRANSFER)) == {Symbol("x"): 1}


# --- the parts -------------------------------------------------------------------------------


def test_annotations_go_where_they_belong_in_any_message() -> None:
    added = {Symbol("b"): encode("new"), ULong(3): encode(None)}
    data = section(DATA, encode(b"x"))
    header = section(HEADER, encode([True]))
    existing = section(MESSAGE_ANNOTATIONS, encode({Symbol("a"): 1, Symbol("b"): 2}))
    cases: list[tuple[bytes, dict[Any, Any]]] = [
        (data, {}),
        (header + data, {}),
        (header + existing + data, {Symbol("a"): 1}),
    ]

    for message, rest in cases:
        sections = sections_of(annotated(message, added))

        assert entries(sections.message_annotations) == {**rest, Symbol("b"): "new", ULong(3): None}
        assert sections.body == sections_of(message).body
        assert sections.header == sections_of(message).header


def test_every_single_value_of_proton_is_taken() -> None:
    proton_values: dict[Any, Any] = {
        proton.symbol("null"): None,
        proton.symbol("u"): proton.ubyte(5),
        proton.symbol("i"): proton.int32(-3),
        proton.symbol("b"): memoryview(b"x"),
        proton.symbol("map"): {proton.symbol("k"): [True, 1.5, "t"]},
        proton.symbol("d"): proton.Described(proton.symbol("of"), "value"),
        proton.symbol("dec"): proton.decimal32(7),
        proton.ulong(9): proton.char("c"),
    }

    assert added_by(proton_values) == {
        Symbol("null"): encode(None),
        Symbol("u"): encode(UByte(5)),
        Symbol("i"): encode(Int(-3)),
        Symbol("b"): encode(b"x"),
        Symbol("map"): encode({Symbol("k"): [True, 1.5, "t"]}),
        Symbol("d"): encode(Described(Symbol("of"), "value")),
        Symbol("dec"): encode(Decimal(b"\x00\x00\x00\x07")),
        ULong(9): b"\x73\x00\x00\x00c",
    }


def test_what_makes_no_sense_as_an_annotation_is_left_out() -> None:
    array = proton.Array(proton.UNDESCRIBED, proton.Data.INT, 1, 2)
    proton_values = {proton.symbol("a"): array, "text": 1, 5: 2, proton.symbol("ok"): 3}

    assert added_by(proton_values) == {Symbol("ok"): encode(3)}
    assert added_by("nothing of the kind") == {}


def test_what_was_added_does_not_fill_memory() -> None:
    modifications = Modifications(bytes_max=10_000)
    for event_id in range(1_000):
        modifications.note("reader", event_id, {Symbol("x"): bytes(100)})

    assert len(modifications) <= 10_000 // 100
    assert modifications.added_to("reader", 999) is not None
    assert modifications.added_to("reader", 0) is None
    modifications.forget("reader", range(1_000))
    assert len(modifications) == 0
    assert BYTES_MAX > 10_000


def test_long_names_do_not_fill_memory() -> None:
    modifications = Modifications(bytes_max=100_000)
    for event_id in range(100):
        modifications.note("reader", event_id, {Symbol("x" * 50_000): b"\x40"})

    assert len(modifications) <= 2


def test_what_is_settled_is_forgotten(
    peers: tuple[Peer, Peer], realm: penstock.Realm, session: penstock.Session
) -> None:
    modifications = service_of(realm).modifications
    one, _ = peers
    session.queues.get("jobs").push(b"a")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, annotations={Symbol("x"): 1}))
    one.next(TRANSFER)
    assert len(modifications) == 1
    accepted = Raw(performative(0x24))
    one.say(frame_of(DISPOSITION, True, UInt(1), UInt(1), True, accepted))
    one.say(frame_of(FLOW, UInt(0), UInt(9), UInt(0), UInt(9), None, None, None, None, None, True))
    one.next(FLOW)

    assert len(modifications) == 0


# --- when it is to come again ----------------------------------------------------------------


def in_ms(wait_ms: int) -> dict[Any, Any]:
    """The annotation by which RabbitMQ's clients, too, have a message wait."""
    now_ms = time.time_ns() // 1_000_000
    return {Symbol("x-opt-delivery-time"): now_ms + wait_ms, Symbol("x-why"): "no paper"}


@pytest.mark.spec("D18")
@pytest.mark.parametrize("failed", [False, True])
def test_a_message_given_back_with_a_delivery_time_comes_again_then(
    peers: tuple[Peer, Peer], session: penstock.Session, failed: bool
) -> None:
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.push(b"later")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, failed=failed, annotations=in_ms(500)))
    jobs.push(b"now")
    assert b"now" in one.next(TRANSFER).raw

    transfer = one.next(TRANSFER)
    assert b"later" in transfer.raw
    assert annotations_of(transfer) == {Symbol("x-why"): "no paper"}
    assert header_of(transfer)[4:] == ([UInt(1)] if failed else [])


@pytest.mark.spec("D18")
def test_it_waits_for_everybody_and_is_shown(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.push(b"later")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(
        modified(0, failed=True, annotations=in_ms(3_600_000)) + frame_of(DETACH, UInt(0), True)
    )
    one.next(DETACH)

    assert jobs.pop(timeout=0) is None
    assert (jobs.info().waiting, jobs.info().events) == (1, 1)


@pytest.mark.spec("D18")
@pytest.mark.parametrize("value", [-5, 1, None])
def test_a_time_that_has_passed_is_at_once(
    peers: tuple[Peer, Peer], session: penstock.Session, value: Any
) -> None:
    one, _ = peers
    session.queues.get("jobs").push(b"again")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, failed=True, annotations={Symbol("x-opt-delivery-time"): value}))

    assert b"again" in one.next(TRANSFER).raw


@pytest.mark.spec("D18")
@pytest.mark.parametrize("value", ["soon", True, 1e12, b"1"])
def test_a_time_that_means_none_ends_the_link(
    peers: tuple[Peer, Peer], session: penstock.Session, value: Any
) -> None:
    """The client is told that its message does not wait."""
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.push(b"again")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(modified(0, failed=True, annotations={Symbol("x-opt-delivery-time"): value}))

    one.next(DETACH)
    assert one.conditions() == [b"amqp:invalid-field"]
    event = jobs.pop(timeout=WAIT_S)
    assert event is not None
    assert event.redelivery_count == 1


@pytest.mark.spec("D18")
def test_a_time_beyond_all_bounds_is_a_year(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.push(b"later")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(
        modified(0, annotations={Symbol("x-opt-delivery-time"): (1 << 63) - 1})
        + frame_of(DETACH, UInt(0), True)
    )
    one.next(DETACH)

    assert jobs.info().waiting == 1


@pytest.mark.spec("D18")
def test_what_amqp_clients_give_back_waits_as_the_queue_says(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    jobs = session.queues.get("jobs")
    jobs.edit(backoff={"first": "1h", "most": "2h"})
    jobs.push(b"a")
    jobs.push(b"b")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.next(TRANSFER)
    one.say(modified(0, failed=True) + modified(1) + credit(0, 5))

    assert b"b" in one.next(TRANSFER).raw, "released is not failed"
    assert jobs.info().waiting == 1


# --- rejected, and too late ------------------------------------------------------------------


def rejected(number: int, condition: str, description: str) -> bytes:
    error = performative(0x1D, encode(Symbol(condition)), encode(description))
    return frame_of(
        DISPOSITION, True, UInt(number), UInt(number), True, Raw(performative(0x25, error))
    )


@pytest.mark.spec("T11")
def test_the_outcome_rejected_is_a_rejection_with_its_reason(
    peers: tuple[Peer, Peer], session: penstock.Session
) -> None:
    one, _ = peers
    dead = session.queues.create("dead")
    jobs = session.queues.get("jobs")
    jobs.edit(dead_event_store="dead")
    jobs.push(b"poison")
    one.say(credit(0, 5))
    one.next(TRANSFER)
    one.say(rejected(0, "amqp:decode-error", "no such form"))

    dead_event = dead.pop(timeout=WAIT_S)
    assert dead_event is not None
    assert dead_event.origin is not None
    assert dead_event.origin.cause == "rejected"
    assert dead_event.origin.reason == "amqp:decode-error: no such form"
    assert jobs.info().counters.dead == 1


@pytest.mark.spec("D19")
def test_what_a_silent_client_holds_goes_to_another(dial: Dial, session: penstock.Session) -> None:
    news = session.channels.create("news", engine="jms")
    news.durables.create("me:sub", ack_timeout=0.1)
    news.publish(b"slow")
    source = durable_source("news", "topic", "shared")
    one, other_peer = dial(), dial()
    one.say(opened("me") + receiver("sub", 0, source, credit=5))
    assert header_of(one.next(TRANSFER))[4:] == []
    other_peer.say(opened("me") + receiver("sub", 0, source, credit=5))

    again = other_peer.next(TRANSFER)
    assert b"slow" in again.raw
    assert header_of(again)[4:] == [UInt(1)]
    one.say(frame_of(DISPOSITION, True, UInt(0), UInt(0), True, Raw(performative(0x24))))
    one.say(frame_of(DETACH, UInt(0), False))
    one.next(DETACH)
    assert one.conditions() == [], "an outcome that comes too late is no mistake"
