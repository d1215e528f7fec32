"""Sends the replies of a session to where their requests want them (SEM R2)."""

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
"""Addresses whose publishers are kept, those used last: each session that asks has its own."""


class _AmqpParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reply takes over from the header ``amqp`` of its request: a text is replied to by a
    text, and the id that it repeats keeps its AMQP type."""

    body: str = ""
    message_id: str = ""
    correlation_id: str = ""


_PLAIN: Final = _AmqpParts()


class Replies:
    """Held by a session as the ``replier`` of its connection."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection
        self._publishers: OrderedDict[str, Publisher] = OrderedDict()

    async def reply(self, request: Event, data: bytes, attributes: Mapping[str, Any]) -> int:
        """Publish a reply; gives its id. Raises ``IllegalState``, ``NameDoesNotExist``,
        ``AccessDenied``, and what publishing raises."""
        asked = request.headers
        address = asked.get("reply_to")
        if not address:
            raise IllegalState(
                f"event {request.event_id} asks for no reply: it has no header reply_to; "
                "send it with request()"
            )
        headers = _reply_headers(asked, data, attributes.get("headers"))
        answer = Event(data, **{**attributes, "headers": headers})
        publisher = await self._publisher(address)
        try:
            return await publisher.publish_one(answer)
        except NameDoesNotExist:
            # A new connection has to tell the name again, which is the right to publish there.
            self._publishers.pop(address, None)
        return await (await self._publisher(address)).publish_one(answer)

    async def _publisher(self, address: str) -> Publisher:
        known = self._publishers.get(address)
        if known is None:
            opened = await self._connection.ask(OpenReplyTo(address), ChannelOpened)
            known = Publisher(self._connection, opened.channel)
            self._publishers[address] = known
            while len(self._publishers) > ADDRESSES_MAX:
                self._publishers.popitem(last=False)
        self._publishers.move_to_end(address)
        return known


def _reply_headers(
    asked: Mapping[str, Any], data: bytes, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    headers = dict(given or {})
    own = _amqp_of(asked.get("amqp"))
    correlation, kind = asked.get("correlation_id"), own.correlation_id
    if not correlation:
        correlation, kind = asked.get("message_id"), own.message_id
    if correlation:
        headers.setdefault("correlation_id", correlation)
    is_text = own.body == "text" and is_utf8(data)
    answer = _AmqpParts("text" if is_text else "", correlation_id=kind)
    if "amqp" not in headers and answer != _PLAIN:
        headers["amqp"] = msgspec.json.encode(answer).decode()
    return headers


def _amqp_of(text: str | None) -> _AmqpParts:
    if text:
        # Any publisher can have written it.
        with contextlib.suppress(InvalidArgument, msgspec.DecodeError, RecursionError):
            check_json_nesting(text, "the header")
            return msgspec.json.decode(text, type=_AmqpParts)
    return _PLAIN
