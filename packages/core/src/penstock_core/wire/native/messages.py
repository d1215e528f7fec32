"""Headers of the native protocol: one struct per kind of frame.

They travel as msgpack arrays whose first element is the tag. Requests carry a number the
client chose; the answer (:class:`Done` or :class:`Failed`) repeats it. Requests on one
connection are worked through in order, and may be pipelined.
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
    """Travels as a msgpack array, its tag first."""


class Asked(Message, frozen=True):
    """A request, and the number its answer repeats. It travels as one array: the request's tag,
    the number, the fields of the request."""

    number: int
    request: Request[Any]


# --- client to server ---------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first frame of a connection."""

    client: Name
    """Name and version of the client's software, for people."""
    session: Name
    """The session this connection belongs to; the same after a reconnect."""
    user: Name = ""
    token: Text = ""
    """A bearer token, if that is the proof."""
    mechanism: Name = ""
    """``SCRAM-SHA-256``: the proof follows, on the server's :class:`Challenge`; empty: a token, a
    client certificate, or none."""
    data: bytes = b""
    """The first message of ``mechanism``."""


class Schema(Message, frozen=True, tag=2):
    """Body: an Arrow schema. Both sides name it by ``number`` from now on."""

    number: Number


class Proof(Message, frozen=True, tag=3):
    """The client's answer to a :class:`Challenge`."""

    data: bytes


class Follow(Message, frozen=True, tag=4):
    """The client wants :class:`Owners`, now and with each change. A node that stands by is asked
    without a Hello; an owner that is asked without one tells once and ends the connection, unless
    it is relayed."""


class Credit(Message, frozen=True, tag=44):
    """The client can take ``count`` more events of a plain subscription."""

    subscription: Number
    count: Count
    next_id: EndId = 0
    """All deliveries with lower ids have arrived."""
    taken: Count = 0
    """Bytes of deliveries that the application has taken since it was said last."""


class Demand(Message, frozen=True, tag=45):
    """A synchronous consumer wants ``count`` events now; answered by :class:`Finished`."""

    subscription: Number
    count: Count


class RecallSeen(Message, frozen=True, tag=47):
    """The answer to a :class:`Recalled`: it counts in all that follows from this client."""

    subscription: Number


class Bye(Message, frozen=True, tag=61):
    """The client closes in order."""


# --- server to client ---------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=100):
    realm: str
    """Identity of the realm: other bytes after somebody exchanged the data directory."""
    name: str
    version: str
    event_bytes_max: int
    frame_bytes_max: int


class ClusterWelcome(Welcome, frozen=True, tag=100):
    """A node of a cluster welcomes a client. Its first fields are those of any welcome, so older
    clients understand them."""

    heartbeat_s: float = 0.0
    """Seconds of silence after which the client pings; after three times as many it gives the
    connection up, for another node may be the owner by then. 0: as with a realm on its own."""
    nodes: tuple[str, ...] = ()
    """Host and port of each node of the cluster, as in a URL."""
    node: str = ""
    """Host and port of the node that says this: another one where the connection is relayed."""


class Done(Message, frozen=True, tag=101):
    request: int
    answer: Any = None


class Failed(Message, frozen=True, tag=102):
    request: int
    code: str
    text: str


class Delivery(Message, frozen=True, tag=103):
    """Body: one Arrow record batch of ``count`` events, their ids ascending.

    ``first_id`` >= 0: the ids are dense from there and all were published at ``at_us``;
    -1: the batch has ``event_id`` and ``published`` columns itself.
    """

    subscription: int
    schema: int
    count: int
    first_id: int
    at_us: int
    redeliveries: tuple[tuple[int, Spans], ...] = ()
    publishers: tuple[tuple[str, Spans], ...] = ()
    """Ids by publisher (``user@host``); no spans: all ids (SEM E3)."""


class Finished(Message, frozen=True, tag=104):
    """A browse is at its end, or a demand is met or cancelled."""

    subscription: int


class Closed(Message, frozen=True, tag=105):
    """The server ended a subscription, because its channel or durable was deleted."""

    subscription: int
    code: str
    text: str


class Goodbye(Message, frozen=True, tag=106):
    """The server ends the connection, and why."""

    code: str
    text: str


class Redirect(Goodbye, frozen=True, tag=106):
    """A node of a cluster ends the connection, for another one owns what the client wants. Its
    first fields are those of any goodbye, so older clients understand them."""

    address: str = ""
    """Host and port of the owner, as in a URL; empty: it is not named."""


class Parting(Redirect, frozen=True, tag=106):
    """The server ends the connection of a client that it has welcomed. Its first fields are those
    of any goodbye, so older clients understand them."""

    taken: int = -1
    """The highest number of a request that the server has begun: the others may be asked of
    somebody else, or again. -1: it does not say."""


class Owners(Message, frozen=True, tag=109):
    """Which node owns which shard, as far as the one that says it knows: the answer to
    :class:`Follow`."""

    version: int
    """Grows with each claim: whoever knows a higher one knows better."""
    owners: dict[int, str]
    """Host and port of each shard's owner, as in a URL."""
    nodes: tuple[str, ...] = ()
    """Host and port of each node that is there."""


class ChannelsFound(Message, frozen=True, tag=116):
    """Channels of a pattern that the client watches were made, or it may read them from now on
    (SEM D21)."""

    subscription: int
    channels: tuple[ChannelOpened, ...]


class Challenge(Message, frozen=True, tag=108):
    """The server's messages during sign-in: a challenge, then its own proof."""

    data: bytes


class Recalled(Message, frozen=True, tag=107):
    """An earlier event was rolled back, and order is strict: these events, which were sent already,
    count as never delivered (SEM D11). Nothing more is sent before :class:`RecallSeen`."""

    subscription: int
    spans: Spans


FromClient = Hello | Proof | Schema | Follow | Credit | Demand | RecallSeen | Bye
"""Messages of a client besides its requests."""
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
"""Said in the place of two of them, with more fields."""
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
"""What the decoder makes: of two messages with one tag the longer one."""


def _framed(tag: int, kind: type[Request[Any]]) -> type[Struct]:
    """A request of this kind as it travels."""
    fields: list[tuple[Any, ...]] = [("request", Number)]
    for each in msgspec.structs.fields(kind):
        default = () if each.required else (each.default,)
        fields.append((each.name, each.type, *default))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, array_like=True, tag=tag)


def _maker(kind: type[Request[Any]]) -> Callable[..., Request[Any]]:
    """What makes a request of the values of its fields, in their order."""
    names = kind.__struct_fields__
    if kind.__match_args__ == names:
        return kind
    return lambda *values: kind(**dict(zip(names, values, strict=True)))


_tags = {kind: tag for tag, kind in TAGS.items()}


class _FromClients:
    """Decodes what clients say. A kind of request gets its form when one first comes: to make all
    forms takes 10 ms of each start, and most programs use few."""

    def __init__(self) -> None:
        self.makers: dict[type[Struct], Callable[..., Request[Any]]] = {}
        """By form of the request."""
        self._forms: dict[int, type[Struct]] = {}
        """By tag."""
        self._newest: tuple[msgspec.msgpack.Decoder[Any], frozenset[int]] = (
            msgspec.msgpack.Decoder(FromClient),
            frozenset(),
        )
        """A decoder with the tags of the requests it knows. Realms in other threads may replace it
        at any time, by one that does not know all that this one does."""

    def decode(self, header: memoryview) -> Any:
        decoder, known = self._newest
        try:
            return decoder.decode(header)
        except msgspec.ValidationError:
            tag = _tag_of(header)
            if tag is None or tag in known:
                raise
        return self.knowing(tag).decode(header)

    def knowing(self, *tags: int) -> msgspec.msgpack.Decoder[Any]:
        """A decoder that knows requests with these tags."""
        for tag in tags:
            kind = TAGS[tag]
            self.makers[self._forms.setdefault(tag, _framed(tag, kind))] = _maker(kind)
        forms = dict(self._forms)
        every = msgspec.msgpack.Decoder[Any](Union[(*get_args(FromClient), *forms.values())])
        self._newest = every, frozenset(forms)
        return every


def _tag_of(header: memoryview) -> int | None:
    """The tag of a request; None where the header is that of none."""
    try:
        tag, *_ = msgspec.msgpack.decode(header, type=list[Any])
    except (*_NO_MESSAGE, ValueError):
        return None
    return tag if isinstance(tag, int) and tag in TAGS else None


_encoder = msgspec.msgpack.Encoder()
_from_server: msgspec.msgpack.Decoder[_Decoded] = msgspec.msgpack.Decoder(_Decoded)

_PLACE = re.compile(r" - at `\$\[(\d+)\]")
_BEYOND = re.compile(r"Expected `\w+` (of length )?(>=|<=) -?\d+")
"""The decoder's message for a value out of bounds, as opposed to one of the wrong type."""
_NAMES = {"kind": "type"}
"""Fields that users know by another name than the protocol."""

_from_clients = _FromClients()

_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are none; the last one for nesting without end."""


class Unreadable(Struct, frozen=True):
    """A request with a value beyond its bound; its connection stays as it is."""

    request: int
    reason: InvalidArgument


def encode(message: Message) -> bytes:
    if not isinstance(message, Asked):
        return _encoder.encode(message)
    request = message.request
    return _encoder.encode((_tags[type(request)], message.number, *astuple(request)))


def decode_from_client(header: memoryview) -> FromClient | Asked | Unreadable:
    """A client's message, or which bound a request is beyond. Raises ``RemoteProtocolViolation``
    for anything else."""
    try:
        found = _from_clients.decode(header)
    except msgspec.ValidationError as error:
        if (refused := _unreadable(header, str(error))) is not None:
            return refused
        raise RemoteProtocolViolation(f"the header is not a client message: {error}") from error
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"the header is not a client message: {error}") from error
    make = _from_clients.makers.get(type(found))
    if make is None:
        return cast("FromClient", found)
    number, *fields = astuple(found)
    return Asked(number, make(*fields))


def _unreadable(header: memoryview, fault: str) -> Unreadable | None:
    """Which request a fault is about, in words about its fields; None where it is about none."""
    try:
        tag, request, *_ = msgspec.msgpack.decode(header, type=list[Any])
    except (*_NO_MESSAGE, ValueError):
        return None
    kind = TAGS.get(tag) if isinstance(tag, int) else None
    if kind is None or not isinstance(request, int) or not 0 <= request <= NUMBER_MAX:
        return None
    if (place := _PLACE.search(fault)) is None:
        return None  # not about a field, but for example a header that is too short
    if _BEYOND.match(fault) is None:
        return None  # of another type
    fields = msgspec.structs.fields(kind)
    at = int(place[1]) - 2  # after the tag and the number
    name = name_for_users(fields[at].name) if 0 <= at < len(fields) else "field"
    named = f"{fault[: place.start()]} - at `$.{name}{fault[place.end() :]}"
    return Unreadable(request, InvalidArgument(explain(msgspec.ValidationError(named))))


def name_for_users(field: str) -> str:
    """The name under which users of a client know a field of a request."""
    return _NAMES.get(field, field)


def decode_from_server(header: memoryview) -> FromServer:
    """Raises ``RemoteProtocolViolation`` for anything that is no server message."""
    try:
        found: FromServer = _from_server.decode(header)
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"the header is not a server message: {error}") from error
    return _as_sent(found) if isinstance(found, FromNode) else found


def _as_sent(found: ClusterWelcome | Redirect) -> FromServer:
    """The shorter message, where nothing came behind its fields."""
    if isinstance(found, ClusterWelcome):
        return found if found.heartbeat_s else Welcome(*astuple(found)[:-3])
    if isinstance(found, Parting) and found.taken >= 0:
        return found
    if found.address:
        return Redirect(found.code, found.text, found.address)
    return Goodbye(found.code, found.text)
