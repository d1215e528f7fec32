"""The library wsproto reads the frames written here, and its frames are read here."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from penstock_core.wire.websocket import (
    BINARY,
    NORMAL,
    PING,
    WebSocketReader,
    close_bytes,
    frame_bytes,
)
from tests.thorough import examples


@given(st.lists(st.tuples(st.binary(max_size=70_000), st.booleans()), max_size=6), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_wsproto_reads_what_is_written_and_writes_what_is_read(
    messages: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    peer = Connection(ConnectionType.CLIENT)
    sent = b"".join(
        peer.send(BytesMessage(data=message, message_finished=is_last))
        for message, is_last in messages
    )
    reader, offset, got = WebSocketReader(), 0, b""
    while offset < len(sent):
        size = data.draw(st.integers(1, len(sent)))
        reader.receive(sent[offset : offset + size])
        got += b"".join(fragment.data for fragment in reader.pieces() if fragment.opcode == BINARY)
        offset += size
    assert got == b"".join(message for message, _ in messages)

    peer.receive_data(b"".join(frame_bytes(BINARY, message) for message, _ in messages))
    heard = [bytes(event.data) for event in peer.events() if isinstance(event, BytesMessage)]
    assert b"".join(heard) == b"".join(message for message, _ in messages)
    peer.receive_data(frame_bytes(PING, b"there?") + close_bytes(NORMAL, "gone"))
    ping, close = peer.events()
    assert ping == Ping(payload=b"there?")
    assert close == CloseConnection(code=NORMAL, reason="gone")
