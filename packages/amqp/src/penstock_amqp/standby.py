"""AMQP on a standby node of a cluster: connections are redirected to the owner (2.8.16).

This module does not use Proton. A standby node has no accounts, so it admits every client without a
password and then redirects it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_amqp.conditions import description_of
from penstock_amqp.wire import FIRST_BYTES, sasl
from penstock_amqp.wire.performatives import encode_close, encode_open
from penstock_amqp.wire.types import Symbol, UInt
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_server.frontends.shared.arrivals import Arrivals, StandbyProtocol
from penstock_server.frontends.shared.serving_node import part

REDIRECT: Final = "amqp:connection:redirect"
FORCED: Final = "amqp:connection:forced"
_ANONYMOUS: Final = "ANONYMOUS"
_FRAME_HEAD: Final = 8


class StandbyAmqpConnection(StandbyProtocol, asyncio.Protocol):
    """Opens a connection and closes it with the address of the owner."""

    def __init__(self, arrivals: Arrivals, container: str) -> None:
        """``container`` is the container id that the node sends."""
        super().__init__(arrivals)
        self._container = container
        self._frames = sasl.SaslFrames()
        self._is_signing_in = False
        self._data: bytes | None = None
        """Bytes after the protocol header; None before the header is complete."""

    def data_received(self, data: bytes) -> None:
        if self._has_answered or self._transport is None:
            return
        try:
            if self._data is None:
                self._frames.feed(data)
                self._before_amqp(self._transport)
            else:
                self._data += data
        except RemoteProtocolViolation:
            self._has_answered = True
            self._transport.close()
            return
        # The client's open frame comes first: the answer to it is the node's own open and close.
        if self._data is not None and _has_frame(self._data):
            self._has_answered = True
            part(self._transport, encode_open(self._container) + self._redirect_frame())

    def eof_received(self) -> bool:
        return False

    def _before_amqp(self, transport: asyncio.Transport) -> None:
        """Process protocol headers and SASL frames until AMQP frames follow. Raises
        ``RemoteProtocolViolation``."""
        while self._data is None:
            if self._is_signing_in:
                if (frame := self._frames.frame()) is None:
                    return
                self._sign_in(transport, frame)
            elif (header := self._frames.header()) is None:
                return
            elif header == sasl.SASL_PROTOCOL:
                self._is_signing_in = True
                transport.write(header + sasl.mechanisms([_ANONYMOUS]))
            elif header == sasl.PROTOCOL:
                transport.write(header)
                self._data = self._frames.rest()
            else:
                transport.write(sasl.PROTOCOL)
                raise RemoteProtocolViolation(f"{header!r} is not an AMQP 1.0 protocol header")

    def _sign_in(self, transport: asyncio.Transport, frame: sasl.Init | sasl.Response) -> None:
        """Accept an anonymous client. Raises ``RemoteProtocolViolation`` for other mechanisms."""
        if not isinstance(frame, sasl.Init) or frame.mechanism != _ANONYMOUS:
            transport.write(sasl.outcome(sasl.AUTH))
            raise RemoteProtocolViolation(
                "a standby node cannot check credentials; sign in with ANONYMOUS"
            )
        transport.write(sasl.outcome(sasl.OK))
        self._is_signing_in = False

    def _redirect_frame(self) -> bytes:
        """Return a close frame with the address of the owner, or the reason without one."""
        owner, reason = self._arrivals.owner(), self._arrivals.refusal("amqp")
        place = None if owner is None else owner.place("amqp")
        if place is None:
            return encode_close(FORCED, description_of(reason))
        host, port = place
        info = {
            Symbol("hostname"): host,
            Symbol("network-host"): host,
            Symbol("port"): UInt(port),
        }
        return encode_close(REDIRECT, str(reason), info)


def wants_relay(data: bytes) -> bool | None:
    """Return True if a connection with these first bytes is relayed to the owner; None if more
    bytes are needed."""
    return data.startswith(FIRST_BYTES) if len(data) >= len(FIRST_BYTES) else None


def _has_frame(data: bytes) -> bool:
    """Return True if the data begins with a complete frame."""
    return len(data) >= max(_FRAME_HEAD, int.from_bytes(data[:4], "big"))
