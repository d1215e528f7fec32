"""Peers that break the protocol or fall silent: told why, shut out, and nothing of them stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import penstock
from packages.amqp.tests.frames import (
    AMQP,
    ATTACH,
    BEGIN,
    CLOSE,
    DISPOSITION,
    OPEN,
    SASL,
    TRANSACTIONAL,
    Raw,
    frame,
    frame_of,
    message,
    opened,
    performative,
    receiver,
    sender,
    terminus,
    transfer,
)
from packages.amqp.tests.peers import PATIENCE_S, Peer
from penstock_amqp.connection import AmqpConnection
from penstock_amqp.engine import AmqpEngine
from penstock_amqp.wire.types import UByte, UInt, ULong, encode

FRAMING = b"amqp:connection:framing-error"
PATIENT_S = 60.0
"""Whoever is hung up on where patience is not the subject, it is not for being slow."""
SECONDS_MAX = 0.5
EVENT_BYTES_MAX = 1 << 20

WORK = terminus(0x29, "work", capability="queue")


@pytest.fixture
def hello_timeout_s() -> float:
    return PATIENT_S


@pytest.fixture
def idle_timeout_s() -> float:
    return PATIENT_S


@pytest.fixture
def realm(hello_timeout_s: float, idle_timeout_s: float) -> Iterator[penstock.Realm]:
    """With no room for large events."""
    with penstock.Realm(
        listen__hello_timeout_s=hello_timeout_s,
        listen__idle_timeout_s=idle_timeout_s,
        limits__max_event_bytes=EVENT_BYTES_MAX,
    ) as running:
        yield running


@pytest.fixture
def peer(realm: penstock.Realm) -> Iterator[Peer]:
    peer = Peer(realm.listen_amqp())
    yield peer
    peer.hang_up()


def is_well(realm: penstock.Realm) -> bool:
    """It serves others as if nothing had been."""
    with realm.connect() as session:
        queue = session.queues.create("well")
        queue.push(b"x")
        event = queue.pop()
    return event is not None and event.data == b"x"


@pytest.mark.parametrize("hello_timeout_s", [SECONDS_MAX])
@pytest.mark.parametrize(
    "begin",
    [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"AMQP\x03\x01\x00\x00\x00\x00\x00\x01"],
)
def test_what_is_not_amqp_1_0_is_hung_up_on(
    realm: penstock.Realm, peer: Peer, begin: bytes
) -> None:
    peer.say(begin)

    peer.hear_all()
    assert is_well(realm)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x7f\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\x00\x00\x00\x09\x01\x00\x00\x00\x00",
        frame(performative(0x77)),
        frame(b"\x00\x53\x12\xc0\xff\x01"),
    ],
    ids=["endless", "too short", "offset", "unknown performative", "list too long"],
)
def test_a_frame_that_makes_no_sense_ends_the_connection(
    realm: penstock.Realm, peer: Peer, wrong: bytes
) -> None:
    peer.say(opened())
    peer.hear(performative(BEGIN)[:3])
    peer.say(wrong)

    peer.hear_all()
    assert peer.conditions() == [FRAMING]
    assert is_well(realm)


@pytest.mark.parametrize(
    "odd",
    [
        frame_of(OPEN, "again"),
        sender(Raw(b"\xa1\x02\xff\xfe"), 0, WORK),
    ],
    ids=["second open", "name of a link"],
)
def test_what_the_engine_would_pass_over_ends_the_connection(
    realm: penstock.Realm, peer: Peer, odd: bytes
) -> None:
    peer.say(opened())
    peer.hear(performative(BEGIN)[:3])
    peer.say(odd + sender("good", 1, WORK))

    heard = peer.hear_all()
    assert b"amqp:not-allowed" in heard or FRAMING in heard
    assert is_well(realm)


ARRAYS = {
    "more elements than there are": b"\xf0\x00\x00\x00\x15\x00\x00\x00\xdf\xa3\x0ftemporary-queue",
    "no elements and no type": b"\xf0\x00\x00\x00\x05\x00\x00\x00\x02\x00",
    "numbers": b"\xe0\x04\x02\x50\x01\x02",
    "a type that the issuer does not publish": b"\xe0\x04\x02\xdf\x01\x02",
    "longer than its frame": b"\xf0\x7f\xff\xff\xff\x00\x00\x00\x01\xa3\x01x",
    "not ASCII": b"\xe0\x04\x01\xa3\x01\xff",
}


@pytest.mark.parametrize("capabilities", ARRAYS.values(), ids=ARRAYS)
def test_hopes_of_a_connection_that_make_no_sense_harm_nobody(
    realm: penstock.Realm, peer: Peer, capabilities: bytes
) -> None:
    peer.say(AMQP + frame_of(OPEN, "c", "h", *[None] * 6, Raw(capabilities)) + frame_of(CLOSE))

    assert performative(CLOSE)[:3] in peer.hear_all(), "it was not just hung up on"
    assert is_well(realm)


@pytest.mark.parametrize("what", ARRAYS)
def test_capabilities_that_cannot_be_written_again_end_their_session(
    realm: penstock.Realm, peer: Peer, what: str
) -> None:
    """Proton takes such arrays in and dies of writing them out again. One that its frame does not
    hold ends the connection."""
    target = terminus(0x29, "work", UInt(0), None, UInt(0), False, None, Raw(ARRAYS[what]))
    peer.say(opened() + sender("s", 0, target))

    peer.hear(FRAMING if what == "longer than its frame" else b"amqp:decode-error")
    assert is_well(realm)


def test_an_address_that_is_no_text_ends_the_connection(realm: penstock.Realm, peer: Peer) -> None:
    address = Raw(b"\xa1\x02\xff\xfe")
    peer.say(opened() + sender("s", 0, terminus(0x29, address, capability="queue")))

    peer.hear_all()
    assert peer.conditions() == [FRAMING]
    assert is_well(realm)


def test_a_transfer_to_nowhere_ends_its_session(realm: penstock.Realm, peer: Peer) -> None:
    peer.say(opened())
    peer.hear(performative(BEGIN)[:3])
    peer.say(transfer(7, 0, message()))

    peer.hear(b"amqp:session:unattached-handle")
    assert is_well(realm)


@pytest.mark.parametrize(
    "state",
    [
        performative(TRANSACTIONAL, encode(ULong(1 << 33))),
        b"\x00\x53\x34" + encode(ULong(5)),
        performative(TRANSACTIONAL, encode(b"x"), performative(0x70)),
        performative(TRANSACTIONAL),
        performative(0x99),
    ],
    ids=["a number", "no list", "no outcome", "nothing", "unknown"],
)
def test_a_state_that_makes_no_sense_harms_nobody(
    realm: penstock.Realm, peer: Peer, state: bytes
) -> None:
    """A transaction's id that is a number is not taken for so many zeros."""
    source = terminus(0x28, "work", capability="queue")
    with realm.connect() as session:
        session.queues.create("work").push(b"x")
    peer.say(opened() + sender("s", 0, WORK) + receiver("r", 1, source, credit=1))
    peer.hear(b"\x00\x53\x75\xa0\x01x")
    peer.say(frame_of(DISPOSITION, True, UInt(0), UInt(0), False, Raw(state)))
    peer.say(transfer(0, 0, message(), state=Raw(state)) + frame_of(CLOSE))

    peer.hear_all()
    assert is_well(realm)


def test_a_message_that_is_too_large_ends_its_link_however_many_frames_it_has(
    realm: penstock.Realm, peer: Peer
) -> None:
    peer.say(opened() + sender("s", 0, WORK))
    peer.hear(b"work")
    header = b"\x00\x53\x75\xb0" + (1 << 30).to_bytes(4, "big") + bytes(60_000)
    for _ in range(2 * EVENT_BYTES_MAX // len(header)):
        peer.say(transfer(0, 0, header, more=True))

    peer.hear(b"amqp:link:message-size-exceeded")
    assert is_well(realm)
    with realm.connect() as session:
        assert list(session.queues.get("work").peek()) == []


@pytest.mark.parametrize("hello_timeout_s", [SECONDS_MAX])
@pytest.mark.parametrize(
    "beginning",
    [b"", b"AMQ", AMQP, SASL, SASL + b"\x00\x00\x00\x20\x02\x01", AMQP + frame_of(OPEN, "x")[:9]],
    ids=[
        "nothing",
        "half a header",
        "a header",
        "a header of SASL",
        "half a sign-in",
        "half an open",
    ],
)
def test_who_stops_before_the_connection_is_open_is_dropped(
    realm: penstock.Realm, peer: Peer, beginning: bytes
) -> None:
    """Within ``listen.hello_timeout_s``; the test waits for the hanging up itself."""
    peer.say(beginning)

    peer.hear_all()


@pytest.mark.parametrize("idle_timeout_s", [2 * SECONDS_MAX])
def test_who_falls_silent_is_dropped_and_what_he_held_is_free(
    realm: penstock.Realm, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His silence begins once he has what he asked for: until then no time passes for him."""
    is_silent = threading.Event()
    begun_s: list[float] = []
    tick = AmqpEngine.tick

    def stopped_tick(self: AmqpEngine, now_s: float) -> float:
        begun_s.append(now_s)
        return tick(self, now_s if is_silent.is_set() else begun_s[0])

    monkeypatch.setattr(AmqpEngine, "tick", stopped_tick)
    with realm.connect() as session:
        queue = session.queues.create("work")
        queue.push(b"x")
        source = terminus(0x28, "work", capability="queue")
        peer.say(opened() + receiver("r", 0, source, credit=1))
        peer.hear(b"\x00\x53\x75\xa0\x01x")
        is_silent.set()

        peer.hear_all()
        again = queue.pop(timeout=PATIENCE_S)

    assert peer.conditions() == [b"amqp:resource-limit-exceeded"]
    assert again is not None
    assert again.data == b"x"


@pytest.mark.parametrize("idle_timeout_s", [2 * SECONDS_MAX])
def test_who_is_not_listened_to_is_not_silent(
    realm: penstock.Realm, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The realm has enough to do for longer than a peer may say nothing."""
    with realm.connect() as session:
        session.queues.create("work")
    ticks: list[float] = []
    is_over = threading.Event()
    tick = AmqpEngine.tick

    def noted_tick(self: AmqpEngine, now_s: float) -> float:
        again_s = tick(self, now_s)
        ticks.append(now_s)
        if now_s > ticks[0] + 4 * SECONDS_MAX:
            is_over.set()
        return again_s

    with monkeypatch.context() as patched:
        patched.setattr(AmqpEngine, "tick", noted_tick)
        patched.setattr(AmqpConnection, "is_congested", property(lambda self: True))
        peer.say(opened() + sender("s", 0, WORK))
        peer.hear(performative(ATTACH)[:3])
        assert is_over.wait(PATIENCE_S)
        peer.say(frame_of(CLOSE))  # it is there when the realm listens again
    peer.hear_all()

    assert peer.conditions() == []
    assert is_well(realm)


def test_the_engine_writes_nothing_past_the_log(
    realm: penstock.Realm, peer: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Proton has a word of its own for whoever takes no frames worth the name."""
    peer.say(AMQP + frame_of(OPEN, "c", "h", UInt(100)) + frame_of(CLOSE))

    assert performative(CLOSE)[:3] in peer.hear_all()
    assert "bad max-frame" not in capfd.readouterr().err


def test_too_many_links_are_refused(realm: penstock.Realm, peer: Peer) -> None:
    peer.say(opened())
    peer.hear(performative(BEGIN)[:3])
    for number in range(1_001):
        attach = frame_of(ATTACH, f"s{number}", UInt(number), False, UByte(0), UByte(0),
                          terminus(0x28, "c"), WORK, None, None, UInt(0))  # fmt: skip
        peer.say(attach)

    peer.hear(b"amqp:resource-limit-exceeded")
    assert is_well(realm)
