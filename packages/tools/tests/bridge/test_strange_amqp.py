"""Bridges from AMQP sources that send bad messages, break the protocol, or do not answer."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from threading import Thread

import pytest

import penstock
from penstock.client.sync.sync import Channel

if find_spec("proton") is None:
    pytest.skip("python-qpid-proton is not installed", allow_module_level=True)

from proton import Message, symbol, timestamp, ulong

from packages.tools.tests.bridge.draining import bridged, source_link
from packages.tools.tests.bridge.strange_amqp import StrangeAmqp
from penstock_core.vocabulary.errors import EventTooLarge
from penstock_tools.bridge import sources
from penstock_tools.bridge.amqp_source import identity_of
from penstock_tools.bridge.sources import SourceLost

pytestmark = pytest.mark.slow

LIST_32 = b"\xd0"
"""Constructor of a list whose size and count have four bytes."""


@pytest.fixture(autouse=True)
def new(session: penstock.Session) -> Channel:
    return session.channels.create("new", type="persistent")


def nested(depth: int) -> bytes:
    """An encoded list in lists."""
    encoded = b"\x45"
    for _ in range(depth):
        body = b"\0\0\0\1" + encoded
        encoded = LIST_32 + len(body).to_bytes(4) + body
    return encoded


def map_with(value: bytes) -> bytes:
    """An encoded map with one entry."""
    body = b"\0\0\0\2\xa1\x01x" + value
    return b"\xd1" + len(body).to_bytes(4) + body


def good(number: int) -> bytes:
    return bytes(Message(f"{number}", id=f"m{number}", durable=True).encode())


BAD = {
    "not AMQP": b"nonsense",
    "truncated": good(1)[:-1],
    "no bytes": b"",
    "unknown section": b"\x00\x53\x50\x45",
    "sections out of order": b"\x00\x53\x77\x40\x00\x53\x70\x45",
    "nested too deep": b"\x00\x53\x74" + map_with(nested(5_000)),
    "message id of a wrong type": b"\x00\x53\x73\xc0\x02\x01\x41\x00\x53\x77\x40",
    "time of a wrong type": b"\x00\x53\x73\xc0\x0a\x09" + b"\x40" * 8 + b"\x41\x00\x53\x77\x40",
}
"""Messages that cannot become events."""


def data_in(channel: Channel) -> list[bytes]:
    return [event.data for event in channel.subscribe(start="earliest", timeout=0.3)]


def test_bad_messages_among_good_ones_are_rejected_and_reported(
    session: penstock.Session, new: Channel
) -> None:
    bad = [message for message in BAD.values() if message]
    messages = [good(0)]
    for number, message in enumerate(bad, 1):
        messages += [message, good(number)]
    reports: list[str] = []
    with StrangeAmqp(messages) as broker:
        steps = bridged(session, broker.url, on_retry=reports.append)

    assert data_in(new) == [f"{number}".encode() for number in range(len(bad) + 1)]
    assert broker.rejected == bad
    assert len(broker.accepted) == len(bad) + 1
    assert sum(step.rejected for step in steps) == len(bad)
    assert sum(step.stored for step in steps) == len(bad) + 1
    assert len(reports) == len(bad)
    assert all("is rejected" in report for report in reports)


def test_a_message_without_any_section_is_an_empty_event(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeAmqp([b"\x00\x53\x77\x40", bytes(Message(b"").encode()), good(1)]) as broker:
        bridged(session, broker.url)

    assert data_in(new) == [b"", b"", b"1"]


def test_extreme_numbers_are_kept_or_lowered(session: penstock.Session, new: Channel) -> None:
    extreme = Message("x", id=ulong(2**64 - 1), priority=255, durable=True)
    extreme.ttl = 2**32 / 1_000 - 1
    extreme.delivery_count = 2**32 - 1
    extreme.creation_time = timestamp(2**62) / 1_000
    extreme.expiry_time = timestamp(2**62) / 1_000
    extreme.properties = {"low": -(2**63), "high": ulong(2**64 - 1), "far": timestamp(2**62)}
    extreme.annotations = {symbol("x-opt-delivery-time"): timestamp(2**62)}
    old = Message("y", id="old", durable=True)
    old.expiry_time = timestamp(1) / 1_000
    with StrangeAmqp([bytes(extreme.encode()), bytes(old.encode()), good(1)]) as broker:
        steps = bridged(session, broker.url)

    assert [step.rejected for step in steps] == [0] * len(steps)
    events = list(new.subscribe(start="earliest", timeout=0.3))
    assert [event.data for event in events if event.data != b"y"] == [b"x", b"1"]
    assert events[0].headers["message_id"] == str(2**64 - 1)


def test_delayed_messages_keep_their_place(session: penstock.Session, new: Channel) -> None:
    """The source has waited for their delivery time, whatever the clock here says."""
    messages = []
    for number in range(20):
        message = Message(f"{number}", id=f"m{number}", durable=True)
        if number % 2:
            message.annotations = {symbol("x-opt-delivery-time"): timestamp(2**42 + number)}
        if number % 5 == 0:
            message.annotations = {symbol("x-opt-delivery-delay"): ulong(3_600_000)}
        messages.append(bytes(message.encode()))
    with StrangeAmqp(messages) as broker:
        bridged(session, broker.url)

    assert data_in(new) == [f"{number}".encode() for number in range(20)]


def test_ids_of_different_types_differ(session: penstock.Session, new: Channel) -> None:
    ids = ["5", ulong(5), b"5", "35", "x" * 5_000, "x" * 5_001]
    messages = [bytes(Message(b"", id=message_id, durable=True).encode()) for message_id in ids]
    with StrangeAmqp([*messages, *messages]) as broker:
        steps = bridged(session, broker.url)

    assert new.info().events == len(ids)
    assert sum(step.repeated for step in steps) == len(ids)
    assert max(len(identity_of(message) or "") for message in messages) < 100


def test_two_bridges_with_one_name_store_each_message_once(
    session: penstock.Session, new: Channel
) -> None:
    with StrangeAmqp([good(number) for number in range(600)]) as broker:
        ends: list[object] = []

        def run() -> None:
            try:
                bridged(session, broker.url, window=10)
            except penstock.PenstockError as error:
                ends.append(error)

        threads = [Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bridged(session, broker.url)

    assert sorted(data_in(new)) == sorted(f"{number}".encode() for number in range(600))
    assert ["run one process for each name" in str(end) for end in ends] == [True] * len(ends)


def test_a_huge_message_ends_the_bridge_before_all_of_it_is_received(
    session: penstock.Session, new: Channel
) -> None:
    huge = bytes(Message(bytes(8 << 20), id="huge", durable=True).encode())
    with (
        StrangeAmqp([good(0), huge]) as broker,
        pytest.raises(EventTooLarge, match="stays at the source"),
    ):
        bridged(session, broker.url, window=1)

    assert broker.accepted == [good(0)]
    assert data_in(new) == [b"0"]


# --- sources that are no brokers ---------------------------------------------------------


class Answering:
    """Answers what it receives with fixed bytes, and then is silent."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self._listener.getsockname()[1]}/old"
        self._answers = answers
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                for answer in self._answers:
                    connection.recv(65_536)
                    connection.sendall(answer)
                while connection.recv(65_536):
                    pass

    def close(self) -> None:
        self._listener.close()


SASL = b"AMQP\x03\x01\x00\x00"
MECHANISMS = (
    b"\x00\x00\x00\x1a\x02\x01\x00\x00\x00\x53\x40\xc0\x0d\x01\xe0\x0a\x01\xa3\x09ANONYMOUS"
)
SIGNED_IN = b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x44\xc0\x03\x01\x50\x00"
HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CONNECT_S", 0.3)


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (SASL + b"\xff" * 64,),
        (SASL + MECHANISMS + SIGNED_IN, HEADER + b"\x00\x00\x00\x07\x02\x00\x00"),
        (SASL + MECHANISMS + SIGNED_IN, HEADER + b"\x7f\xff\xff\xff\x02\x00\x00\x00"),
    ],
    ids=["silent", "http", "garbage", "short frame", "frame of 2 GiB"],
)
@pytest.mark.usefixtures("in_a_hurry")
def test_a_source_that_is_no_broker_counts_as_lost(answers: tuple[bytes, ...]) -> None:
    other = Answering(*answers)
    link = source_link(other.url)
    try:
        with pytest.raises(SourceLost):
            link.connect(b"")
    finally:
        link.close()
        other.close()


def test_a_queue_that_the_source_refuses_is_told_at_the_beginning() -> None:
    with penstock.Realm() as other:
        link = source_link(f"{other.listen_amqp()}/a%0Ab")
        with pytest.raises(SourceLost, match="amqp:invalid-field: invalid-name"):
            link.connect(b"")
        link.close()
