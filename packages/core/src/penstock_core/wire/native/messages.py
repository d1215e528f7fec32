"""Headers of the native protocol: one struct per kind of frame.

A header is a msgpack array whose first element is the tag. The client chooses a number for each
request; the answer (:class:`Done` or :class:`Failed`) repeats the number. Requests on one
connection are performed in order, and may be pipelined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Union, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import (
    NUMBER_MAX,
    Count,
    EndId,
    Name,
    Number,
    Text,
)
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.argument_errors import explain
from penstock_core.vocabulary.errors import InvalidArgument, RemoteProtocolViolation
from penstock_core.wire.native.tags import TAGS


class Message(Struct, frozen=True, array_like=True):
    """A message, encoded as a msgpack array that starts with its tag."""


class Asked(Message, frozen=True):
    """A request and its number, which the answer repeats. It is encoded as one array: the request's
    tag, the number, the fields of the request."""

    number: int
    request: Request[Any]


# --- client to server ---------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The client's first frame on a connection: it introduces the client and begins its
    sign-in."""

    client: Name
    """Name and version of the client's software, for people."""
    session: Name
    """The session of the connection; it stays the same after a reconnect."""
    user: Name = ""
    token: Text = ""
    """A bearer token, if the client signs in with one."""
    mechanism: Name = ""
    """``SCRAM-SHA-256`` if the proof follows after the server's :class:`Challenge`; ``PLAIN`` if
    ``data`` has user and password, which only TLS or one machine keeps secret. Empty if the client
    signs in with a token or a client certificate, or not at all."""
    data: bytes = b""
    """The first message of ``mechanism``."""


class Schema(Message, frozen=True, tag=2):
    """An Arrow schema, in the frame's body. Both sides refer to it by ``number`` from now on."""

    number: Number


class Proof(Message, frozen=True, tag=3):
    """The client's answer to a :class:`Challenge`."""

    data: bytes


class Follow(Message, frozen=True, tag=4):
    """The client requests :class:`Owners`, now and after each change. A node that stands by answers
    also before a Hello. Before a Hello, the owner answers once and ends the connection, unless the
    connection is relayed."""


class Credit(Message, frozen=True, tag=44):
    """The client can receive ``count`` more events of a plain subscription."""

    subscription: Number
    count: Count
    next_id: EndId = 0
    """The id below which all deliveries have arrived."""
    taken: Count = 0
    """Bytes of deliveries that the application has processed since the last message."""


class Demand(Message, frozen=True, tag=45):
    """A synchronous consumer wants ``count`` events now; answered by :class:`Finished`."""

    subscription: Number
    count: Count


class RecallSeen(Message, frozen=True, tag=47):
    """The answer to a :class:`Recalled`. All later messages of the client take the recall into
    account."""

    subscription: Number


class Bye(Message, frozen=True, tag=61):
    """The client closes in order."""


# --- server to client ---------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=100):
    """The server accepts the connection."""

    realm: str
    """Identity of the realm; it changes if the data directory is replaced by another one."""
    name: str
    """Name of the realm."""
    version: str
    """Version of Penstock that the realm runs."""
    event_bytes_max: int
    """Largest size of an event, in bytes."""
    frame_bytes_max: int
    """Largest size of a frame that the server accepts, in bytes."""


class ClusterWelcome(Welcome, frozen=True, tag=100):
    """A node of a cluster welcomes a client. Its first fields are those of any welcome, so older
    clients understand them."""

    heartbeat_s: float = 0.0
    """Seconds of silence after which the client sends a ping. After three times this time it closes
    the connection, because another node may be the owner by then. 0 means the client's
    defaults."""
    nodes: tuple[str, ...] = ()
    """Host and port of each node of the cluster, as in a URL."""
    node: str = ""
    """Host and port of the sending node, which is not the connected node if the connection is
    relayed."""


class Done(Message, frozen=True, tag=101):
    """The answer to a request that was performed."""

    request: int
    """Number of the request."""
    answer: Any = None


class Failed(Message, frozen=True, tag=102):
    """The error of a request that was not performed, or whose outcome is unknown."""

    request: int
    """Number of the request."""
    code: str
    """Code of the error, as in ``penstock_core.vocabulary.errors``."""
    text: str


class Delivery(Message, frozen=True, tag=103):
    """Events for a subscription: one Arrow record batch of ``count`` events in the frame's body,
    with ascending ids.

    If ``first_id`` is 0 or more, the ids are consecutive from ``first_id`` on and all events were
    published at ``at_us``. If it is -1, the batch has the columns ``event_id`` and ``published``.
    """

    subscription: int
    schema: int
    count: int
    first_id: int
    at_us: int
    redeliveries: tuple[tuple[int, Spans], ...] = ()
    publishers: tuple[tuple[str, Spans], ...] = ()
    """Publishers (``user@host``), each with the ids that it published; a publisher without spans
    has published all (SEM E3)."""


class Finished(Message, frozen=True, tag=104):
    """A browse has ended, or a demand was fulfilled or cancelled."""

    subscription: int


class Closed(Message, frozen=True, tag=105):
    """The server ended a subscription, because its channel or durable was deleted."""

    subscription: int
    code: str
    text: str


class Goodbye(Message, frozen=True, tag=106):
    """The server ends the connection, with a reason."""

    code: str
    text: str


class Redirect(Goodbye, frozen=True, tag=106):
    """A node of a cluster ends the connection because another node is the owner. Its first fields
    are those of any goodbye, so older clients understand them."""

    address: str = ""
    """Host and port of the owner, as in a URL; empty if the owner is not known."""


class Parting(Redirect, frozen=True, tag=106):
    """The server ends the connection of a client that it has welcomed. Its first fields are those
    of any goodbye, so older clients understand them."""

    taken: int = -1
    """The highest number of a request that the server has begun; -1 if it is not known. The client
    may repeat later requests, also to another server."""


class Owners(Message, frozen=True, tag=109):
    """The owner of each shard, as far as the sending node knows; the answer to :class:`Follow`."""

    version: int
    """Increases with each claim; the message with the highest version is the newest."""
    owners: dict[int, str]
    """Host and port of each shard's owner, as in a URL."""
    nodes: tuple[str, ...] = ()
    """Host and port of each node of the cluster."""


class ChannelsFound(Message, frozen=True, tag=116):
    """New channels of a watched pattern: they were created, or the client received the right to
    read them (SEM D21)."""

    subscription: int
    channels: tuple[ChannelOpened, ...]


class Challenge(Message, frozen=True, tag=108):
    """The server's messages during sign-in: a challenge, then its own proof."""

    data: bytes


class Recalled(Message, frozen=True, tag=107):
    """The server takes back events that it has sent, because an earlier event was rolled back and
    order is strict. They count as not delivered (SEM D11). The server sends no further events of
    the subscription before :class:`RecallSeen`."""

    subscription: int
    spans: Spans


FromClient = Hello | Proof | Schema | Follow | Credit | Demand | RecallSeen | Bye
"""Messages of a client other than requests."""
# Messages of a server.
FromServer = (
    Welcome
    | Challenge
    | Schema
    | Done
    | Failed
    | Delivery
    | Finished
    | Closed
    | Goodbye
    | Recalled
    | Owners
    | ChannelsFound
)
FromNode = ClusterWelcome | Redirect | Parting
"""Extended forms of ``Welcome`` and ``Goodbye``, which have the same tags and more fields."""
_Decoded = (
    ClusterWelcome
    | Challenge
    | Schema
    | Done
    | Failed
    | Delivery
    | Finished
    | Closed
    | Parting
    | Recalled
    | Owners
    | ChannelsFound
)
"""The types that the decoder returns; of messages with the same tag, the type with most fields."""


def _framed(tag: int, kind: type[Request[Any]]) -> type[Struct]:
    """Return the encoded form of a kind of request."""
    fields: list[tuple[Any, ...]] = [("request", Number)]
    for field in msgspec.structs.fields(kind):
        default = () if field.required else (field.default,)
        fields.append((field.name, field.type, *default))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, array_like=True, tag=tag)


def _maker(kind: type[Request[Any]]) -> Callable[..., Request[Any]]:
    """Return a function that creates a request from the values of its fields, in their order."""
    names = kind.__struct_fields__
    if kind.__match_args__ == names:
        return kind
    return lambda *values: kind(**dict(zip(names, values, strict=True)))


_tags = {kind: tag for tag, kind in TAGS.items()}


class _FromClients:
    """Decodes messages of clients. The encoded form of a kind of request is created when the first
    such request arrives, because creating all forms takes 10 ms at each start and most programs
    need few."""

    def __init__(self) -> None:
        self.makers: dict[type[Struct], Callable[..., Request[Any]]] = {}
        """Functions that create requests, by encoded form."""
        self._forms: dict[int, type[Struct]] = {}
        """Encoded forms of requests, by tag."""
        self._newest: tuple[msgspec.msgpack.Decoder[Any], frozenset[int]] = (
            msgspec.msgpack.Decoder(FromClient),
            frozenset(),
        )
        """The newest decoder, and the tags of its requests. Realms in other threads may replace the
        pair at any time by a decoder that lacks some of these tags."""

    def decode(self, header: memoryview) -> Any:
        """Decode a message; a request of a kind that is not known yet extends the decoder first."""
        decoder, known_tags = self._newest
        try:
            return decoder.decode(header)
        except msgspec.ValidationError:
            tag = _tag_of(header)
            if tag is None or tag in known_tags:
                raise
        return self.knowing(tag).decode(header)

    def knowing(self, *tags: int) -> msgspec.msgpack.Decoder[Any]:
        """Return a decoder for requests with these tags and all tags used so far."""
        for tag in tags:
            kind = TAGS[tag]
            self.makers[self._forms.setdefault(tag, _framed(tag, kind))] = _maker(kind)
        forms = dict(self._forms)
        decoder = msgspec.msgpack.Decoder[Any](Union[(*get_args(FromClient), *forms.values())])
        self._newest = decoder, frozenset(forms)
        return decoder


def _tag_of(header: memoryview) -> int | None:
    """Return the tag of a request, or None if the header is not a request."""
    try:
        tag, *_ = msgspec.msgpack.decode(header, type=list[Any])
    except (*_NO_MESSAGE, ValueError):
        return None
    return tag if isinstance(tag, int) and tag in TAGS else None


_encoder = msgspec.msgpack.Encoder()
_from_server: msgspec.msgpack.Decoder[_Decoded] = msgspec.msgpack.Decoder(_Decoded)

_PLACE = re.compile(r" - at `\$\[(\d+)\]")
_BEYOND = re.compile(r"Expected `\w+` (of length )?(>=|<=) -?\d+")
"""The decoder's message for a value of the right type that is out of bounds."""
_NAMES = {"kind": "type"}
"""Names in the API of the fields whose name in the protocol differs."""

from_clients = _FromClients()

_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding for bytes that are not a message; the last one for too deep nesting."""


class Unreadable(Struct, frozen=True):
    """A request with a value out of bounds. The request fails, and its connection stays open."""

    request: int
    reason: InvalidArgument


def encode(message: Message) -> bytes:
    """Return the header with a message."""
    if not isinstance(message, Asked):
        return _encoder.encode(message)
    request = message.request
    return _encoder.encode((_tags[type(request)], message.number, *astuple(request)))


def decode_from_client(header: memoryview) -> FromClient | Asked | Unreadable:
    """Decode a client's message; a request with a value out of bounds is returned as
    ``Unreadable``. Raises ``RemoteProtocolViolation`` for other bytes."""
    try:
        message = from_clients.decode(header)
    except msgspec.ValidationError as error:
        if (refused := _unreadable(header, str(error))) is not None:
            return refused
        raise RemoteProtocolViolation(f"the header is not a client message: {error}") from error
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"the header is not a client message: {error}") from error
    make = from_clients.makers.get(type(message))
    if make is None:
        return cast("FromClient", message)
    number, *fields = astuple(message)
    return Asked(number, make(*fields))


def _unreadable(header: memoryview, fault: str) -> Unreadable | None:
    """Return the request that a decoding error is about, with an error text that names the field;
    None if the error is not about a value out of bounds."""
    # Such a value comes from a mistake of the program, so only this request fails. After other
    # errors the connection cannot be trusted.
    try:
        tag, request, *_ = msgspec.msgpack.decode(header, type=list[Any])
    except (*_NO_MESSAGE, ValueError):
        return None
    kind = TAGS.get(tag) if isinstance(tag, int) else None
    if kind is None or not isinstance(request, int) or not 0 <= request <= NUMBER_MAX:
        return None
    if (place := _PLACE.search(fault)) is None:
        return None  # not about a field; for example, the header is too short
    if _BEYOND.match(fault) is None:
        return None  # a value of the wrong type
    fields = msgspec.structs.fields(kind)
    index = int(place[1]) - 2  # after the tag and the number
    name = name_for_users(fields[index].name) if 0 <= index < len(fields) else "field"
    named = f"{fault[: place.start()]} - at `$.{name}{fault[place.end() :]}"
    return Unreadable(request, InvalidArgument(explain(msgspec.ValidationError(named))))


def name_for_users(field: str) -> str:
    """Return the name of a request's field in the API of clients."""
    return _NAMES.get(field, field)


def decode_from_server(header: memoryview) -> FromServer:
    """Decode a server's message. Raises ``RemoteProtocolViolation`` for other bytes."""
    try:
        message: FromServer = _from_server.decode(header)
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"the header is not a server message: {error}") from error
    return _as_sent(message) if isinstance(message, FromNode) else message


def _as_sent(message: ClusterWelcome | Redirect) -> FromServer:
    """Return the basic message if the additional fields of the extended message are not set."""
    if isinstance(message, ClusterWelcome):
        return message if message.heartbeat_s else Welcome(*astuple(message)[:-3])
    if isinstance(message, Parting) and message.taken >= 0:
        return message
    if message.address:
        return Redirect(message.code, message.text, message.address)
    return Goodbye(message.code, message.text)
