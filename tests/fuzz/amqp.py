"""The real AMQP connection object of a real realm, fed with almost valid frames.

As with native connections, no socket is involved. A connection logs unforeseen errors and ends, so
the log is checked. After any end of a conversation no client may count as connected, no event may
stay in flight, and no temporary destination may remain.
"""

from __future__ import annotations

import asyncio
import atexit
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from structlog.testing import capture_logs

from packages.amqp.tests.frames import (
    ACCEPTED,
    CLOSE,
    COORDINATOR,
    DECLARE,
    DETACH,
    DISCHARGE,
    DISPOSITION,
    END,
    MODIFIED,
    NO,
    NULL,
    SASL,
    SASL_INIT,
    TRANSACTIONAL,
    YES,
    Raw,
    flow,
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
from penstock_amqp.wire.performatives import OUTCOMES, PERFORMATIVES
from penstock_amqp.wire.sections import fields, section, sections_of
from penstock_amqp.wire.types import (
    Described,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode,
    encode_symbols,
    read,
)
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from tests.fuzz.connections import TURNS_MAX, Served, Wire

TURNS_A_FRAME: Final = 10
"""Turns of the event loop for a frame: a client waits until the realm attaches its link and gives
it credit."""
_HEADER_BYTES: Final = 8


class AmqpServed(Served):
    """The realm with AMQP connections."""

    answer = b""
    """The last answer of the realm."""

    async def converse(self, data: bytes) -> None:
        from penstock_amqp.connection import AmqpHub

        connection, out = AmqpHub(self.listener).connection(), Wire()
        with capture_logs() as logged:
            connection.connection_made(out)
            for chunk in pieces(data):
                if not out.is_closing():
                    connection.data_received(chunk)
                    for _ in range(TURNS_A_FRAME):
                        await asyncio.sleep(0)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
            connection.connection_lost(None)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
        self.answer = bytes(out.written)
        unforeseen = [line for line in logged if line["log_level"] in ("error", "critical")]
        assert not unforeseen, f"an unforeseen error of the connection: {unforeseen}"


@lru_cache
def _served() -> AmqpServed:
    served = AmqpServed()
    atexit.register(served.close)
    return served


def serve(data: bytes) -> None:
    """Converse with the bytes as they are, and with frame sizes that fit."""
    _served().handle(data)
    _served().handle(reframed(data))


def messages(data: bytes) -> None:
    """Read a message: its sections and each value in them."""
    try:
        sections = sections_of(data)
        for encoded in (sections.header, sections.properties):
            if encoded:
                fields(encoded)
        for encoded in (
            sections.message_annotations,
            sections.application_properties,
            sections.footer,
        ):
            if encoded:
                read(encoded)
        for _, encoded in sections.body:
            value, end = read(encoded)
            assert 0 < end <= len(encoded), "it ends outside of the value"
            encode(value)
    except RemoteProtocolViolation:
        return


def letters() -> Sequence[bytes]:
    return [message(), message(body={"a": [1, 2.5, None, {"b": b"x"}], "t": Timestamp(5)})]


def headers(data: bytes) -> None:
    """Read an event with the text as its header ``amqp`` and ``mqtt``: its message must be readable
    whatever the headers have."""
    from penstock_amqp.outgoing import EncodedMessages

    text = data.decode("utf-8", "replace")
    properties = {"n": 1e300, "t": "text", "i": -1}
    for name in ("amqp", "mqtt"):
        event = Event(b"data", tag="tag", properties=properties, headers={name: text})
        batch = stamp(body_of([event]), Span(0, 1), 0)
        encoded = EncodedMessages(OutgoingBatch((Span(0, 1),), batch=batch)).message(0, 0)
        assert sections_of(encoded).body or '"none"' in text, "the message has lost its data"
        assert len(encoded) <= 4 * len(data) + 10_000, "the header has multiplied the data"


def header_texts() -> Sequence[bytes]:
    """Headers with many fields, and deeply nested ones."""
    encoded = b64encode(encode({Symbol("k"): [1, {"a": b"b"}]})).decode()
    return [
        b'{"body":"text","priority":200,"zero_ttl":true,"to":"x","message_id":"ulong"}',
        b'{"body":"none","sizes":[1,3],"times":[9223372036854775807,null]}',
        b'{"types":{"n":"float","t":"char","i":"ulong"},"content_type":"text/plain"}',
        f'{{"annotations":"{encoded}","footer":"{encoded}","user_id":"AA=="}}'.encode(),
        f'{{"application_properties":"{encoded}","reply_to_group_id":"g"}}'.encode(),
        b'{"payload_format":1,"content_type":"a/b","hex":true}',
        b'{"zz":' + b"[" * 101 + b"]" * 101 + b"}",
        b'{"zz":' + b'{"a":' * 5_000 + b"0" + b"}" * 5_001,
    ]


_SYMBOLS: Final = {
    **{code: composite.name for code, composite in PERFORMATIVES.items()},
    0x1D: "error",
    0x28: "source",
    0x29: "target",
    0x30: "coordinator",
    0x33: "declared",
    0x34: "transactional-state",
    0x31: "declare",
    0x32: "discharge",
    **{code: composite.name for code, composite in OUTCOMES},
}


def with_symbols(value: Any) -> Any:
    """Return a value whose standard types are described by symbols."""
    if isinstance(value, list):
        return [with_symbols(item) for item in value]
    if not isinstance(value, Described):
        return value
    code = value.descriptor
    name = _SYMBOLS.get(code) if isinstance(code, ULong) else None
    return Described(Symbol(f"amqp:{name}:list") if name else code, with_symbols(value.value))


def symbolic(conversation: bytes) -> bytes:
    """Return a conversation whose standard types are described by symbols."""
    frames_ = []
    for chunk in pieces(conversation):
        if chunk.startswith(b"AMQP") or chunk[5]:  # a sign-in has its own types
            frames_.append(chunk)
            continue
        body = chunk[_HEADER_BYTES:]
        performative, end = read(body)
        frames_.append(frame(encode(with_symbols(performative)) + body[end:]))
    return b"".join(frames_)


@lru_cache
def conversations() -> Sequence[bytes]:
    """Valid conversations, frame by frame: with codes, and again with symbols."""
    numeric = _conversations()
    return [*numeric, *map(symbolic, numeric)]


def _conversations() -> Sequence[bytes]:
    queue = terminus(0x29, "work", capability="queue")
    from_queue = terminus(0x28, "work", capability="queue")
    selector = Described(ULong(0x468C00000004), "n > 1")
    chosen = terminus(
        0x28, "news", UInt(2), Symbol("never"), UInt(0), False, None, None,
        {Symbol("jms-selector"): selector}, capability="topic",
    )  # fmt: skip
    temporary = terminus(0x29, None, UInt(0), Symbol("link-detach"), UInt(0), True, None,
                         capability="temporary-queue")  # fmt: skip
    coordinator = Raw(performative(COORDINATOR, encode_symbols(["amqp:local-transactions"])))
    declare = section(0x77, performative(DECLARE, NULL))
    discharge = section(0x77, performative(DISCHARGE, encode(b"1"), NO))
    under = Raw(performative(TRANSACTIONAL, encode(b"1"), performative(ACCEPTED)))
    accepted = Raw(performative(ACCEPTED))
    modified = Raw(performative(MODIFIED, YES, NO))
    ends = frame_of(DETACH, UInt(0), True) + frame_of(END) + frame_of(CLOSE)
    plain = frame(performative(SASL_INIT, encode(Symbol("PLAIN")), encode(b"\0u\0p")), kind=1)
    anonymous = frame(performative(SASL_INIT, encode(Symbol("ANONYMOUS")), NULL), kind=1)
    long = message(body="x" * 3_000)
    return [
        SASL + anonymous + opened(),
        SASL + plain,
        opened() + sender("s", 0, queue) + transfer(0, 0, message()) + transfer(0, 1, long) + ends,
        opened() + sender("s", 0, queue) + transfer(0, 0, long[:900], more=True)
        + transfer(0, 0, long[900:]),
        opened() + sender("s", 0, queue) + transfer(0, 0, message()) + receiver("r", 1, from_queue)
        + frame_of(DISPOSITION, True, UInt(0), UInt(0), True, accepted) + flow(1, 5, drain=True),
        opened() + receiver("r", 0, from_queue)
        + frame_of(DISPOSITION, True, UInt(0), UInt(3), True, modified) + ends,
        opened() + receiver("kept", 0, chosen) + frame_of(DETACH, UInt(0), False),
        opened() + sender("relay", 0, terminus(0x29, None))
        + transfer(0, 0, message(to="work")) + ends,
        opened() + sender("t", 0, temporary) + transfer(0, 0, message()),
        opened() + sender("c", 0, coordinator) + transfer(0, 0, declare) + sender("s", 1, queue)
        + transfer(1, 1, message(), state=under) + transfer(0, 2, discharge) + ends,
    ]  # fmt: skip


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield the complete frames, then the rest."""
    start = 0
    while start < len(data):
        is_header = data[start : start + 4] == b"AMQP"
        size = _HEADER_BYTES if is_header else int.from_bytes(data[start : start + 4], "big")
        end = start + max(size, _HEADER_BYTES)
        yield data[start:end]
        start = end


def reframed(data: bytes) -> bytes:
    """Return the bytes with frame sizes that fit, so that a change inside of a frame gets past the
    reader of frames."""
    frames_ = []
    for chunk in pieces(data):
        if chunk.startswith(b"AMQP"):
            frames_.append(chunk)
        else:
            content = chunk[4:].ljust(4, b"\0")
            frames_.append((4 + len(content)).to_bytes(4, "big") + b"\x02" + content[1:])
    return b"".join(frames_)
