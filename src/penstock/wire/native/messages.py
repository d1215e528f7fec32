"""Headers of the native protocol: one struct per kind of frame.

They travel as msgpack arrays whose first element is the tag. Requests carry a number the
client chose; the answer (:class:`Done` or :class:`Failed`) repeats it. Requests on one
connection are worked through in order, and may be pipelined.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct

from penstock.core.bounds import (
    BATCHES_MAX,
    NUMBER_MAX,
    Count,
    EndId,
    EventId,
    GivenName,
    LastId,
    Name,
    Number,
    SelectorText,
    Text,
    Window,
)
from penstock.core.errors import InvalidArgument, RemoteProtocolViolation
from penstock.core.ids import BoundedSpans
from penstock.core.messages import Definition, Spans
from penstock.core.starts import AnyStart

# Part of this module for whoever uses it.
# isort: off
from penstock.wire.native.access import (
    AccessRequest as AccessRequest,
    Challenge as Challenge,
    Proof as Proof,
)
from penstock.wire.native.administration import (
    AbortImport as AbortImport,
    BeginExport as BeginExport,
    BeginImport as BeginImport,
    CommitImport as CommitImport,
    CreateJoin as CreateJoin,
    DeleteJoin as DeleteJoin,
    EndExport as EndExport,
    ListJoins as ListJoins,
    PausePublishing as PausePublishing,
    PutImport as PutImport,
    ReadExport as ReadExport,
    Redrive as Redrive,
    Transfer as Transfer,
)
from penstock.wire.native.backups import (
    BeginBackup as BeginBackup,
    EndBackup as EndBackup,
    ReadBackup as ReadBackup,
)
from penstock.wire.native.holding import (
    Bury as Bury,
    DescribeOutstanding as DescribeOutstanding,
    Hold as Hold,
)
from penstock.wire.native.transactions import (
    AbortTransaction as AbortTransaction,
    BeginTransaction as BeginTransaction,
    CommitTransaction as CommitTransaction,
    DescribeTransaction as DescribeTransaction,
    Leaving as Leaving,
    TransactionPart as TransactionPart,
)
from penstock.wire.native.headers import Kind as Kind, Message as Message, Request as Request
from penstock.wire.native.staging import (
    CommitStagedParts as CommitStagedParts,
    CommitStages as CommitStages,
    DropStages as DropStages,
    StageEvents as StageEvents,
)
# isort: on

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


class CreateChannel(Request, frozen=True, tag=10):
    name: GivenName
    definition: Definition


class OpenChannel(Request, frozen=True, tag=11):
    name: GivenName
    kind: Kind = "channel"


class DeleteChannel(Request, frozen=True, tag=12):
    name: GivenName
    kind: Kind = "channel"


class EditChannel(Request, frozen=True, tag=13):
    name: GivenName
    definition: Definition
    """Its ``kind`` says whether a channel or a queue is meant."""


class ListChannels(Request, frozen=True, tag=14):
    kind: Kind = "channel"


class DescribeChannel(Request, frozen=True, tag=15):
    name: GivenName
    kind: Kind = "channel"


class PurgeChannel(Request, frozen=True, tag=16):
    channel: Number
    first_id: EventId | None
    last_id: LastId | None
    """Inclusive."""
    selector: SelectorText = ""


class DescribeRealm(Request, frozen=True, tag=17):
    pass


class DescribeColumns(Request, frozen=True, tag=18):
    """The schema all stored events of a channel fit; answered by an Arrow schema, as IPC bytes."""

    channel: Number


class MaintainChannel(Request, frozen=True, tag=19):
    """Rewrite a single-file store without its dead events (SEM S, maintain)."""

    name: GivenName
    kind: Kind = "channel"


class PublishEvents(Request, frozen=True, tag=20):
    """Body: ``sizes`` Arrow record batches of one schema, one after the other.

    With a ``deliver_at`` column, set in every row: they wait for their time (SEM X4), and the
    answer has their numbers in the channel's schedule.
    """

    channel: Number
    producer: Name
    sequence: Number
    schema: Number
    sizes: Annotated[tuple[Number, ...], Meta(max_length=BATCHES_MAX)]


class OpenSchedule(Request, frozen=True, tag=28):
    """The hidden store of what waits to be published on a channel (SEM X4): it can be browsed,
    and purged to cancel. Answered by a ``ChannelOpened``, or None when nothing ever waited."""

    channel: Number


class CreateDurable(Request, frozen=True, tag=30):
    channel: Number
    name: GivenName
    kind: Name
    start: AnyStart
    selector: SelectorText = ""
    persistent: bool | None = None
    max_deliveries: Count = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: Name = ""


class DeleteDurable(Request, frozen=True, tag=31):
    channel: Number
    name: GivenName


class ListDurables(Request, frozen=True, tag=32):
    channel: Number


class DescribeDurable(Request, frozen=True, tag=33):
    channel: Number
    name: GivenName


class PurgeDurable(Request, frozen=True, tag=34):
    """Take events off what is outstanding at a durable; the others keep them."""

    channel: Number
    name: GivenName
    first_id: EventId | None
    last_id: LastId | None
    """Inclusive."""
    selector: SelectorText = ""


class UnbindDurable(Request, frozen=True, tag=35):
    """End all subscriptions of a durable (SEM D14); answered by how many there were."""

    channel: Number
    name: GivenName


class Subscribe(Request, frozen=True, tag=40):
    """Read a channel: live, or up to and including ``last_id`` (a browse; -1: all there is)."""

    channel: Number
    subscription: Number
    start: AnyStart
    credit: Count
    selector: SelectorText = ""
    browse: bool = False
    last_id: LastId | None = None
    confirms: bool = False
    """The client says what has arrived when it is asked to (:class:`Credit`, SEM J5)."""
    deltas: bool = False
    """The client understands deltas: changes of a merge channel may come as such (SEM K3)."""
    bytes_max: Count = 0
    """Bytes of deliveries the client has room for, until it says that they were taken
    (:class:`Credit`); a single event may be larger. 0: as many as there is credit for."""
    bytes_held: Count = 0
    """What it still has of an earlier connection."""


class Attach(Request, frozen=True, tag=41):
    """Take a seat at a durable."""

    channel: Number
    subscription: Number
    durable: GivenName
    window: Window | None = None
    pull: bool = False
    selector: SelectorText = ""
    auto_ack: bool = False
    """The client acknowledges what it was handed without being told to (SEM D5, J7)."""
    sole: bool = False
    """Hold the durable as a whole: nothing is delivered, events are taken by :class:`Hold`."""


class BrowseDurable(Request, frozen=True, tag=42):
    """See what is outstanding at a durable, or on a queue (its durable is called ""), in order;
    changes nothing (SEM D16, Q4)."""

    channel: Number
    subscription: Number
    durable: GivenName
    credit: Count
    selector: SelectorText = ""
    bytes_max: Count = 0
    """As of :class:`Subscribe`."""


class Unsubscribe(Request, frozen=True, tag=43):
    subscription: Number


class Credit(Message, frozen=True, tag=44):
    """The client can take ``count`` more events of a plain subscription."""

    subscription: Number
    count: Count
    next_id: EndId = 0
    """What was sent of lower ids has arrived."""
    taken: Count = 0
    """Bytes of deliveries that the application has taken since it was said last."""


class Demand(Message, frozen=True, tag=45):
    """A synchronous consumer wants ``count`` events now; answered by :class:`Finished`."""

    subscription: Number
    count: Count


class Settle(Request, frozen=True, tag=46):
    """Acknowledge or roll back. ``previous``: everything up to the last id named."""

    subscription: Number
    spans: BoundedSpans
    roll_back: bool = False
    previous: bool = False


class RecallSeen(Message, frozen=True, tag=47):
    """The answer to a :class:`Recalled`: it counts in all that follows from this client."""

    subscription: Number


class Locate(Request, frozen=True, tag=50):
    """Where the stored events of an id range can be read (sealed files, or over the wire)."""

    channel: Number
    first_id: EventId
    end_id: EndId
    publishers: bool = False
    """Whether to say who published them."""


class DescribeMissing(Request, frozen=True, tag=51):
    """Why ids of a range have no event any more."""

    channel: Number
    first_id: EventId
    end_id: EndId


class Ping(Request, frozen=True, tag=60):
    pass


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
    """By publisher (``user@host``): which of them; no spans: all (SEM E3)."""


class Finished(Message, frozen=True, tag=104):
    """A browse is at its end, or a demand is met or cancelled."""

    subscription: int


class Closed(Message, frozen=True, tag=105):
    """The server ended a subscription: its channel or durable is gone."""

    subscription: int
    code: str
    text: str


class Goodbye(Message, frozen=True, tag=106):
    """The server ends the connection, and why."""

    code: str
    text: str


class Recalled(Message, frozen=True, tag=107):
    """An earlier event was rolled back, and order is strict: these, sent already, count as never
    delivered (SEM D11). Nothing more comes until the client says :class:`RecallSeen`."""

    subscription: int
    spans: Spans


FromClient = (
    Hello
    | Proof
    | Schema
    | CreateChannel
    | OpenChannel
    | DeleteChannel
    | EditChannel
    | ListChannels
    | DescribeChannel
    | PurgeChannel
    | DescribeRealm
    | DescribeColumns
    | PublishEvents
    | StageEvents
    | CommitStages
    | CommitStagedParts
    | DropStages
    | MaintainChannel
    | BeginTransaction
    | CommitTransaction
    | AbortTransaction
    | DescribeTransaction
    | OpenSchedule
    | CreateJoin
    | DeleteJoin
    | ListJoins
    | Redrive
    | PausePublishing
    | BeginExport
    | ReadExport
    | EndExport
    | BeginImport
    | PutImport
    | CommitImport
    | AbortImport
    | BeginBackup
    | ReadBackup
    | EndBackup
    | AccessRequest
    | CreateDurable
    | DeleteDurable
    | ListDurables
    | DescribeDurable
    | PurgeDurable
    | UnbindDurable
    | DescribeOutstanding
    | Subscribe
    | Attach
    | BrowseDurable
    | Unsubscribe
    | Credit
    | Demand
    | Settle
    | RecallSeen
    | Hold
    | Bury
    | Locate
    | DescribeMissing
    | Ping
    | Bye
)
FromServer = (
    Welcome | Challenge | Schema | Done | Failed | Delivery | Finished | Closed | Goodbye | Recalled
)

_encoder = msgspec.msgpack.Encoder()
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


_requests: dict[Any, type[Message]] = {
    kind.__struct_config__.tag: kind for kind in get_args(FromClient) if issubclass(kind, Request)
}
_PLACE = re.compile(r" - at `\$\[(\d+)\].*", re.DOTALL)
_FAULTS = (
    (re.compile(r"Expected `str` of length <= (\d+)"), r"may have at most \1 characters"),
    (
        re.compile(r"Expected `bytes` of length (>=|<=) (\d+)"),
        r"is of another length than \2 bytes",
    ),
    (re.compile(r"Expected `array` of length <= (\d+)"), r"may have at most \1 entries"),
    (re.compile(r"Expected `\w+` <= (\d+)"), r"has to be at most \1"),
    (re.compile(r"Expected `\w+` >= (-?\d+)"), r"has to be at least \1"),
)
"""Bounds a decoder finds exceeded, and how a person would say it."""

_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are none; the last one for nesting without end."""


class Unreadable(Struct, frozen=True):
    """A request with a value beyond its bound; its connection stays as it is."""

    request: int
    reason: InvalidArgument


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_from_client(header: memoryview) -> FromClient | Unreadable:
    """A client's message, or which bound a request is beyond. Raises ``RemoteProtocolViolation``
    for anything else."""
    try:
        return _from_client.decode(header)
    except msgspec.ValidationError as error:
        if (refused := _unreadable(header, str(error))) is not None:
            return refused
        raise RemoteProtocolViolation(f"a header that is no client message: {error}") from error
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"a header that is no client message: {error}") from error


def _unreadable(header: memoryview, fault: str) -> Unreadable | None:
    """Which request a fault is about, in words about its fields; None where it is about none."""
    try:
        tag, request, *_ = msgspec.msgpack.decode(header, type=list[Any])
    except (*_NO_MESSAGE, ValueError):
        return None
    kind = _requests.get(tag) if isinstance(tag, int) else None
    if kind is None or not isinstance(request, int) or not 0 <= request <= NUMBER_MAX:
        return None
    if (place := _PLACE.search(fault)) is None:
        return None  # not about a field: a header that is too short, say
    fields = msgspec.structs.fields(kind)
    at = int(place[1]) - 1
    name = fields[at].name if 0 <= at < len(fields) else "a field"
    told = fault[: place.start()]
    for pattern, words in _FAULTS:
        if (found := pattern.fullmatch(told)) is not None:
            said = f"{kind.__name__}: {name} {found.expand(words)}"
            return Unreadable(request, InvalidArgument(said))
    return None  # of another type altogether


def decode_from_server(header: memoryview) -> FromServer:
    """Raises ``RemoteProtocolViolation`` for anything that is no server message."""
    try:
        return _from_server.decode(header)
    except _NO_MESSAGE as error:
        raise RemoteProtocolViolation(f"a header that is no server message: {error}") from error
