"""Peers that break the protocol: each gets an error and is disconnected, without an effect on
others."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import get_args, get_type_hints

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.client.sync.sync import Session
from penstock_core.api.access import Verifier
from penstock_core.api.channels import ListChannels
from penstock_core.api.joins import ListJoins
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.subscriptions import Attach, Settle
from penstock_core.api.transactions import Leaving, TransactionPart
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.start_positions import FromEarliest, FromId, FromLatest, FromTime
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import FRAME_BYTES_MAX, PREFACE, frame
from penstock_testing.peers import RawPeer

BATCH = pa.record_batch({"data": pa.array([b"a", b"b"], pa.binary())})
SCHEMA, BODY = schema_bytes(BATCH.schema), bytes(batch_bytes(BATCH))

ODD = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([-(2**63), -1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1]),
)
TEXT = st.sampled_from(["", "a", "d", "shared", "exclusive", "n > 5", "n >", "\0", "ü/"])
STARTS = st.one_of(
    st.builds(FromId, ODD), st.builds(FromTime, ODD), st.just(FromEarliest()), st.just(FromLatest())
)
NUMBERS = st.lists(ODD, max_size=3).map(tuple)
SPANS = st.lists(st.builds(Span, ODD, ODD), max_size=3).map(tuple)
PARTS = st.builds(
    TransactionPart,
    ODD,
    ODD,
    NUMBERS | st.just((len(BODY),)),
    st.lists(TEXT, max_size=3).map(tuple),
)
VERIFIERS = st.builds(Verifier, st.just(bytes(16)), ODD, st.just(bytes(32)), st.just(bytes(32)))
LEAVING = st.builds(Leaving, ODD, SPANS, SPANS)
STAGED_PARTS = st.lists(st.tuples(ODD, st.lists(TEXT, max_size=2).map(tuple)), max_size=3)
BY_TYPE: dict[object, st.SearchStrategy[object]] = {
    int: ODD,
    str: TEXT,
    int | None: ODD | st.none(),
    tuple[int, ...]: NUMBERS,
    tuple[TransactionPart, ...]: st.lists(PARTS, max_size=3).map(tuple),
    tuple[Leaving, ...]: st.lists(LEAVING, max_size=3).map(tuple),
    Verifier: VERIFIERS,
    Verifier | None: VERIFIERS | st.none(),
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    tuple[tuple[int, tuple[str, ...]], ...]: STAGED_PARTS.map(tuple),
}
BY_NAME: dict[str, st.SearchStrategy[object]] = {
    "start": STARTS,
    "spans": SPANS,
    "definition": st.builds(
        Definition,
        type=st.sampled_from(["mixed", "persistent", "reliable", "transient", "paged", "x"]),
        kind=st.sampled_from(["channel", "queue", "schedule"]),
        ttl=ODD,
        capacity=ODD,
        dead_event_store=st.sampled_from(["", "a", "orders", "$orders", "\0"]),
        keys=st.dictionaries(TEXT, ODD, max_size=2),
        max_deliveries=ODD,
        start_event_id=ODD,
        storage=st.builds(Storage, events_per_spindle=ODD),
    ),
}
KINDS = [kind for kind in get_args(wire.FromClient) if kind not in (wire.Hello, wire.Bye)]


def made(kind: type[wire.Message]) -> st.SearchStrategy[wire.Message]:
    """A request of any values: its bounds are left out."""
    drawn = {
        name: BY_NAME.get(name, BY_TYPE.get(hint, st.from_type(hint)))
        for name, hint in get_type_hints(kind).items()
        if name in kind.__struct_fields__
    }
    return st.builds(kind, **drawn)


LAST = 4_711
MESSAGES = st.one_of([made(kind) for kind in KINDS])
BODIES = st.sampled_from([b"", SCHEMA, BODY, BODY + BODY, BODY[:40], bytes(64)])


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as realm:
        yield realm


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as session:
        yield session


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    return realm.listen()


def is_healthy(session: Session) -> bool:
    """It still does for others all that it is there for."""
    if "healthy" not in session.channels.list():
        session.channels.create("healthy", type="reliable")
    channel = session.channels.get("healthy")
    event_id = channel.publish(b"well")
    return [event.data for event in channel.browse(start=event_id)] == [b"well"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "this is the native Penstock port"),
        (b"PENSTCK\x02", "wire version 2; this side speaks 1"),
        (PREFACE + struct.pack("<II", 1 << 30, 4), "1073741824 bytes was announced; 65536 are"),
        (PREFACE + struct.pack("<II", 10, 90) + bytes(90), "header of 90 bytes does not fit"),
        (PREFACE + struct.pack("<II", 12, 8) + b"\xff" * 8, "not a client message"),
        (
            PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Asked(1, ListJoins()))))),
            "be a Hello",
        ),
        (PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Schema(1)), SCHEMA))), "be a Hello"),
        (PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Hello("c", ""))))), "a session id"),
    ],
    ids=["http", "version", "oversized", "header", "malformed", "request", "schema", "nobody"],
)
def test_a_stranger_is_told_what_is_wrong_and_shut_out(
    url: str, session: Session, said: bytes, answer: str
) -> None:
    with RawPeer(url) as peer:
        peer.send(said)
        goodbye = peer.hear(wire.Goodbye)

        assert goodbye.code == "remote-protocol-violation"
        assert answer in goodbye.text
        assert peer.is_closed_by_the_realm
    assert is_healthy(session)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<II", FRAME_BYTES_MAX + 1, 4),
        struct.pack("<II", 12, 8) + b"\xff" * 8,
        b"".join(map(bytes, frame(wire.encode(wire.Hello("c", "again"))))),
        b"".join(map(bytes, frame(wire.encode(wire.Asked(1, Settle(1, (Span(5, 2),))))))),
        b"".join(map(bytes, frame(b"\x93\x65\x01" + b"\x91" * 100_000))),
    ],
    ids=["oversized", "malformed", "second hello", "backward range", "deep"],
)
def test_a_guest_who_breaks_the_protocol_is_told_and_shut_out(
    url: str, session: Session, said: bytes
) -> None:
    with RawPeer(url) as peer:
        peer.greet()
        peer.send(said)

        assert peer.hear(wire.Goodbye).code == "remote-protocol-violation"
        assert peer.is_closed_by_the_realm
    assert is_healthy(session)


@pytest.mark.parametrize(
    ("sizes", "schema", "body", "code"),
    [
        ((len(BODY),), 9, BODY, "invalid-argument"),
        ((len(BODY) + 1,), 1, BODY, "invalid-event"),
        ((len(BODY), 0), 1, BODY, "invalid-event"),
        ((-1, len(BODY) + 1), 1, BODY, "invalid-argument"),
        ((), 1, b"", "invalid-argument"),
        ((40,), 1, BODY[:40], "invalid-event"),
        ((64,), 1, bytes(64), "invalid-event"),
    ],
)
def test_a_publish_whose_body_is_none_is_refused_and_the_connection_lives(
    url: str, session: Session, sizes: tuple[int, ...], schema: int, body: bytes, code: str
) -> None:
    orders = session.channels.create("orders")
    with RawPeer(url) as peer:
        peer.greet()
        peer.say(wire.Schema(1), SCHEMA)
        peer.say(
            wire.Asked(1, PublishEvents(orders.number, "p", 1, schema=schema, sizes=sizes)), body
        )
        assert peer.hear(wire.Failed).code == code

        peer.say(
            wire.Asked(2, PublishEvents(orders.number, "p", 1, schema=1, sizes=(len(BODY),))), BODY
        )
        assert peer.hear(wire.Done).answer == {"first_id": 0, "count": 2}
    assert orders.info().events == 2


@pytest.mark.slow
@given(st.lists(st.tuples(MESSAGES, BODIES), min_size=1, max_size=6))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_sequence_of_messages_leaves_the_realm_healthy(
    url: str, session: Session, said: list[tuple[wire.Message, bytes]]
) -> None:
    """Extreme numbers, unknown names, bodies that do not fit: an answer or the end, never harm."""
    if not session.channels.list():
        orders = session.channels.create("orders", type="reliable", capacity=100)
        assert orders.number in range(6), "what is drawn hits it"
        orders.durables.create("d")
    with RawPeer(url) as peer:
        peer.greet()
        peer.say(wire.Schema(1), SCHEMA)
        for message, body in said:
            peer.say(message, body)
        peer.say(wire.Asked(LAST, ListChannels()))
        answers = peer.hear_until(LAST)

    assert [a for a in answers if isinstance(a, wire.Failed) and a.code == "penstock"] == []
    session.resume_publishing()
    assert is_healthy(session)


@pytest.mark.slow
@given(st.binary(max_size=200))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bytes_from_a_guest_leave_the_realm_healthy(
    url: str, session: Session, junk: bytes
) -> None:
    with RawPeer(url) as peer:
        peer.greet()
        peer.send(*frame(junk[:100], junk[100:]))
        peer.send(junk)
        peer.say(wire.Bye())
        peer.close()

    assert is_healthy(session)


@pytest.mark.spec("D10")
def test_what_is_settled_while_its_seat_is_being_taken_is_settled(
    url: str, session: Session
) -> None:
    """A delivery may be answered before the realm has told that the seat is taken: refused, the
    event would be in nobody's hands, and count against the window for ever."""
    orders = session.channels.create("orders")
    durable = orders.durables.create("d")
    orders.publish_many([penstock.Event()] * 3)
    with RawPeer(url) as peer:
        peer.greet()
        settle = wire.Asked(2, Settle(1, (Span(0, 3),)))
        attach = wire.Asked(1, Attach(orders.number, 1, "d", window=3))
        peer.send(*frame(wire.encode(attach)), *frame(wire.encode(settle)))
        answers = peer.hear_until(2)

        assert [type(answer) for answer in answers if isinstance(answer, wire.Failed)] == []
        assert durable.info().outstanding == 0
