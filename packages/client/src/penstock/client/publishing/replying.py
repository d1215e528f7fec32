"""Sends the replies of a session to the ``reply_to`` of their requests (SEM R2)."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.publishing import Publisher
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requesting import OpenReplyTo
from penstock_core.columns.events.event import Event
from penstock_core.printable import is_utf8
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.nesting import check_json_nesting

ADDRESSES_MAX: Final = 1_024
"""Reply addresses whose publishers are kept, the most recently used ones. Each requesting session
has another address, so their number is unbounded."""


class _AmqpParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of a request's header ``amqp`` that apply to its reply: a text body is answered by
    a text body, and the repeated id keeps its AMQP type."""

    body: str = ""
    message_id: str = ""
    correlation_id: str = ""


_PLAIN: Final = _AmqpParts()


class Replies:
    """The ``replier`` of a session's connection: publishes replies, with one publisher for each
    reply address."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection
        self._publishers: OrderedDict[str, Publisher] = OrderedDict()

    async def reply(self, request: Event, data: bytes, attributes: Mapping[str, Any]) -> int:
        """Publish a reply and return its id. Raises ``IllegalState``, ``NameDoesNotExist``,
        ``AccessDenied``, and the errors of publishing."""
        address = request.headers.get("reply_to")
        if not address:
            raise IllegalState(
                f"event {request.event_id} asks for no reply: it has no header reply_to; "
                "publish requests with request()"
            )
        headers = reply_headers(request.headers, data, attributes.get("headers"))
        answer = Event(data, **{**attributes, "headers": headers})
        publisher = await self._publisher(address)
        try:
            return await publisher.publish_one(answer)
        except NameDoesNotExist:
            # After a reconnect the realm requires the address again: knowing it is the right to
            # publish there.
            self._publishers.pop(address, None)
        return await (await self._publisher(address)).publish_one(answer)

    async def _publisher(self, address: str) -> Publisher:
        """Return the publisher for a reply address, and drop the least recently used ones beyond
        the limit."""
        publisher = self._publishers.get(address)
        if publisher is None:
            opened = await self._connection.ask(OpenReplyTo(address), ChannelOpened)
            publisher = Publisher(self._connection, opened.channel, name=address)
            self._publishers[address] = publisher
            while len(self._publishers) > ADDRESSES_MAX:
                self._publishers.popitem(last=False)
        self._publishers.move_to_end(address)
        return publisher


def reply_headers(
    request: Mapping[str, Any], data: bytes, reply: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the headers of a reply: those of ``reply``, and the id of the request."""
    headers = dict(reply or {})
    amqp = _amqp_of(request.get("amqp"))
    correlation, kind = request.get("correlation_id"), amqp.correlation_id
    if not correlation:
        correlation, kind = request.get("message_id"), amqp.message_id
    if correlation:
        headers.setdefault("correlation_id", correlation)
    is_text = amqp.body == "text" and is_utf8(data)
    answer = _AmqpParts("text" if is_text else "", correlation_id=kind)
    if "amqp" not in headers and answer != _PLAIN:
        headers["amqp"] = msgspec.json.encode(answer).decode()
    return headers


def _amqp_of(text: str | None) -> _AmqpParts:
    """Return the parts of a request's header ``amqp`` that a reply needs; defaults without a valid
    header."""
    if text:
        # Any publisher can set this header, so it may be invalid: it is then ignored.
        with contextlib.suppress(InvalidArgument, msgspec.DecodeError, RecursionError):
            check_json_nesting(text, "the header")
            return msgspec.json.decode(text, type=_AmqpParts)
    return _PLAIN
