"""The tables of operations and requests. They tell the realm which rights a request needs.

:data:`OPERATIONS` declares rights by the name of the operation, which appears in refusals and audit
records. :data:`REQUESTS` lists for each request the operations that it performs, how the target of
each is found, and the name of the target in audit records. Every front end passes its requests to
``penstock_server.runtime.operations``, which reads these two tables, so the same rules apply to all
front ends (SEM A1-A3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from msgspec import Struct

from penstock_core.access.rights import RIGHTS, Need
from penstock_core.api import (
    access,
    channels,
    consuming,
    durables,
    joins,
    patterns,
    publishing,
    reading,
    realm,
    requesting,
    subscriptions,
    tables,
    topics,
    transactions,
    transfers,
)
from penstock_core.api.requests import Request
from penstock_core.vocabulary.temporary import name_in_address

_MONITORED: Final = ("monitor",)
"""The right on the realm that allows all reading operations except reading events."""


def _realm(*rights: str, audited: bool = False) -> Need:
    """Return the need of an operation on the realm: one of ``rights``."""
    return Need("realm", rights, audited=audited)


def _read_only(*rights: str) -> Need:
    """Return the need of a read-only operation on the realm: one of ``rights``, or ``monitor``."""
    return Need("realm", rights, _MONITORED)


def _on_store(kind: Literal["channel", "queue"], read: str, write: str) -> dict[str, Need]:
    """Return the operations that channels and queues have in common. ``read`` and ``write`` are the
    rights to read and to publish events, and the names of these operations."""
    all_rights = RIGHTS[kind]
    return {
        f"{kind}.list": _realm("access"),
        f"{kind}.create": _realm("channels", audited=True),
        f"{kind}.import": _realm("channels", audited=True),
        f"{kind}.open": Need(kind, all_rights, ("channels", "admin", *_MONITORED)),
        f"{kind}.describe": Need(kind, all_rights, ("channels", "admin", *_MONITORED)),
        f"{kind}.columns": Need(kind, (read,), _MONITORED),
        f"{kind}.edit": Need(kind, ("full",), audited=True),
        f"{kind}.delete": Need(kind, ("full",), audited=True),
        f"{kind}.maintain": Need(kind, ("full",), ("admin",), audited=True),
        f"{kind}.export": Need(kind, ("full",), audited=True),
        f"{kind}.{read}": Need(kind, (read,)),
        f"{kind}.{write}": Need(kind, (write,)),
        f"{kind}.purge": Need(kind, ("purge",), audited=True),
        f"{kind}.redrive": Need(kind, ("purge",), audited=True),
        f"{kind}.acl.read": Need(kind, ("manage_acl",), _MONITORED),
        f"{kind}.acl.change": Need(kind, ("manage_acl",), audited=True),
    }


OPERATIONS: Final[Mapping[str, Need]] = MappingProxyType(
    {
        # The realm and its users
        "session.open": _realm("access"),
        "realm.describe": _realm("access"),
        "realm.watch": _realm("monitor", "admin"),  # metrics, rates, pipelines
        "realm.pause": _realm("configure", audited=True),
        "realm.backup": _realm("full", audited=True),
        "realm.reload": _realm("configure", audited=True),
        "connection.list": _realm("monitor", "admin"),
        "mqtt.sessions": _realm("monitor", "admin"),
        "mqtt.session.end": _realm("admin", audited=True),
        "connection.end": _realm("admin", audited=True),
        "audit.read": _read_only("admin"),
        "user.list": _read_only("manage_acl"),
        "user.change": _realm("manage_acl", audited=True),
        "group.list": _read_only("manage_acl"),
        "group.change": _realm("manage_acl", audited=True),
        "realm.acl.read": _read_only("manage_acl"),
        "realm.acl.change": _realm("manage_acl", audited=True),
        "topic.acl.read": Need("topic", ("manage_acl",), _MONITORED),
        "topic.acl.change": Need("topic", ("manage_acl",), audited=True),
        "me.read": _realm("access"),
        "me.password": _realm("access", audited=True),
        # A commit is checked for each store of the transaction: publish or push
        "transaction.describe": _realm("access"),
        "join.list": _read_only("realm", "admin"),
        "join.create": _realm("realm", audited=True),  # and the rights to read and to publish
        "join.delete": _realm("realm", audited=True),
        # Channels, with their durables
        **_on_store("channel", "subscribe", "publish"),
        "durable.list": Need("channel", ("subscribe", "durable"), ("admin", *_MONITORED)),
        "durable.describe": Need("channel", ("subscribe", "durable"), ("admin", *_MONITORED)),
        "durable.attach": Need("channel", ("subscribe",)),
        "durable.browse": Need("channel", ("subscribe",)),
        "durable.create": Need("channel", ("durable",), audited=True),
        "durable.delete": Need("channel", ("durable",), audited=True),
        "durable.purge": Need("channel", ("durable",), audited=True),
        "durable.unbind": Need("channel", ("durable",), audited=True),
        "durable.seek": Need("channel", ("durable",), audited=True),
        "durable.preview": Need("channel", ("subscribe", "durable")),
        "durable.delivery": Need("channel", ("subscribe", "durable")),
        "pattern.list": _realm("access"),
        "pattern.create": _realm("full", audited=True),
        "pattern.delete": _realm("full", audited=True),
        # Queues
        **_on_store("queue", "peek", "push"),
        "queue.pop": Need("queue", ("pop",)),
    }
)
"""Each operation of every front end, by name, with the right it needs."""

Pair = tuple[str, str]
"""An operation on a channel, and the corresponding one on a queue."""
# A client may name a store by its number, so the kind of the store decides which one applies.
READ: Final[Pair] = ("channel.subscribe", "queue.peek")
PUBLISH: Final[Pair] = ("channel.publish", "queue.push")
OPEN: Final[Pair] = ("channel.open", "queue.open")
COLUMNS: Final[Pair] = ("channel.columns", "queue.columns")
PURGE: Final[Pair] = ("channel.purge", "queue.purge")
TAKE: Final[Pair] = ("durable.attach", "queue.pop")
BROWSE: Final[Pair] = ("durable.browse", "queue.peek")
REDRIVE: Final[Pair] = ("channel.redrive", "queue.redrive")

READING: Final[Mapping[str, str]] = MappingProxyType({"channel": READ[0], "queue": READ[1]})
WRITING: Final[Mapping[str, str]] = MappingProxyType({"channel": PUBLISH[0], "queue": PUBLISH[1]})
"""The operations that read and publish events, by kind of store."""

# --- what a request asks for --------------------------------------------------------------


class OnRealm(Struct, frozen=True):
    """An operation on the realm itself."""

    operation: str


class OfKind(Struct, frozen=True):
    """An operation on the realm that depends on the kind of the listed or created stores."""

    kind: Callable[[Any], str]
    """Finds the kind in the request."""
    verb: str
    """The second part of the operation's name, after the kind."""


class NamedTarget(Struct, frozen=True):
    """An operation on the channel or queue whose kind and name are in the request."""

    kind: Callable[[Any], str]
    """Finds the kind in the request."""
    verb: str
    """The second part of the operation's name, after the kind."""


class Numbered(Struct, frozen=True):
    """An operation on the channels or queues whose numbers are in the request."""

    pair: Pair
    numbers: Callable[[Any], Iterable[int]]
    """Finds the numbers in the request."""


class ByName(Struct, frozen=True):
    """An operation on a channel or queue that the request names without its kind."""

    pair: Pair
    name: Callable[[Any], str | None]
    """Finds the name in the request; returns None if the request does not perform the operation."""
    may_be_elsewhere: bool = False
    """Whether a request to the local realm of a node may name a store of the whole cluster. The
    local realm then checks no right; the cluster's realm does (SEM N9)."""


class DeadEventStore(Struct, frozen=True):
    """The right to name a store as the dead event store of a channel. The user must be allowed to
    read that store or to publish to it, because events of the channel are moved there."""

    name: Callable[[Any], str]
    """Finds the name of the channel or queue whose dead events the store gets; empty while the
    channel does not exist yet."""


class DeadEventsRead(Struct, frozen=True):
    """The right to read the dead event store of the channel or queue of the request, if it has
    one."""

    is_read: Callable[[Any], bool]
    """Tells whether the request reads the dead event store."""


class TopicsGiven(Struct, frozen=True):
    """The right to assign MQTT topics to a channel, or to change them: ``full`` on the channel of
    all topics, or on the realm. Messages of these topics are then published to this channel instead
    of the channel of all topics. Creating the channel of all topics needs the same right
    (SEM M12)."""

    name: Callable[[Any], str]
    """Finds the name of the channel."""
    is_new: bool = False
    """Whether the channel is being created. An edit that leaves the present topics unchanged does
    not need the right."""


class PasswordTarget(Struct, frozen=True):
    """The change of a password, which needs no right for one's own."""


class OfResource(Struct, frozen=True):
    """An operation on the grants of the realm, a channel, a queue or a topic filter."""

    verb: str
    """The second part of the operation's name, after the kind of resource."""


Ask = (
    OnRealm
    | OfKind
    | NamedTarget
    | Numbered
    | ByName
    | DeadEventStore
    | DeadEventsRead
    | TopicsGiven
    | PasswordTarget
    | OfResource
)


class Operation(Struct, frozen=True):
    """The rights that a request needs."""

    asks: tuple[Ask, ...] = ()
    """The operations; the first one names the request in refusals and records. Empty if the request
    uses resources that this session has already opened, when the right was checked."""
    about: Callable[[Any], str] = lambda request: ""
    """Returns the name of the target in audit records, if it is not a channel or queue."""
    is_open: bool = False
    """Whether no right is needed, because the request is part of signing in."""

    @property
    def is_numbered(self) -> bool:
        """Whether the client may identify the stores by number only."""
        return any(isinstance(step, Numbered) for step in self.asks)

    @property
    def is_about_its_channel(self) -> bool:
        """Whether the number in the field ``channel`` alone decides which rights are needed."""
        return [getattr(step, "numbers", None) for step in self.asks] == [_channel_field]


def _channel_field(request: Any) -> tuple[int, ...]:
    return (request.channel,)


def operation_on(request: type[Request[Any]], kind: str) -> str:
    """Return the operation that a type of request performs on a channel or queue of ``kind``, or on
    the realm. If the operation depends on the content of the request, return the one that every
    session needs."""
    asks = REQUESTS[request].asks
    match asks[0] if asks else None:
        case OnRealm(operation):
            return operation
        case OfKind(_, verb) | NamedTarget(_, verb):
            return f"{kind}.{verb}"
        case Numbered(pair):
            return pair[kind == "queue"]
        case ByName():
            return "realm.describe"
        case _:
            return "session.open"


def _on_realm(operation: str, about: Callable[[Any], str] | None = None) -> Operation:
    """Return the value in :data:`REQUESTS` for a request that performs ``operation`` on the
    realm."""
    return Operation((OnRealm(operation),), about) if about else Operation((OnRealm(operation),))


def _named(verb: str) -> Operation:
    """Return the value in :data:`REQUESTS` for a request that names its channel or queue by kind
    and name."""
    return Operation((NamedTarget(lambda request: request.kind, verb),))


def _numbered(pair: Pair) -> Operation:
    """Return the value in :data:`REQUESTS` for a request that names its channel or queue by number.
    ``pair`` has the operation on a channel and the one on a queue."""
    return Operation((Numbered(pair, _channel_field),))


def _with_optional_selector(pair: Pair) -> Operation:
    """Return an operation whose request may have a selector. A choice of events reveals something
    about them, so a request with a selector also needs the right to read them."""
    reading = Numbered(READ, lambda request: (request.channel,) if request.selector else ())
    return Operation((Numbered(pair, _channel_field), reading))


def _counting(pair: Pair) -> Operation:
    """Return an operation that counts events. A count reveals something about them, so the
    operation also needs the right to read them."""
    return Operation((Numbered(pair, _channel_field), Numbered(READ, _channel_field)))


def _name_field(request: Any) -> str:
    name: str = request.name
    return name


def _defined_kind(request: channels.CreateChannel | channels.EditChannel) -> str:
    return request.definition.kind


def _join(request: joins.CreateJoin | joins.DeleteJoin) -> str:
    return f"{request.source} -> {request.destination}"


def _over_pattern(request: patterns.CreatePatternDurable | patterns.DeletePatternDurable) -> str:
    return f"{request.name} over {request.pattern}"


def _entry(sign: str, none: str = "") -> Callable[[Any], str]:
    """Return a function that describes the change of a grant for the audit log: ``sign`` is ``+``
    or ``-``, and ``none`` stands for an empty list of rights."""

    def about(request: access.Grant | access.Revoke) -> str:
        rights = ",".join(request.rights) or none
        return f"{request.kind} {request.name}: {sign}{rights} {request.subject}"

    return about


_OWN: Final = Operation()
_TRANSACTION: Final = _on_realm("transaction.describe")

REQUESTS: Final[Mapping[type[Request[Any]], Operation]] = MappingProxyType(
    {
        # Channels and queues
        channels.CreateChannel: Operation(
            (
                OfKind(lambda request: request.definition.kind, "create"),
                DeadEventStore(lambda _: ""),
                TopicsGiven(_name_field, is_new=True),
            ),
            _name_field,
        ),
        channels.EditChannel: Operation(
            (
                NamedTarget(_defined_kind, "edit"),
                DeadEventStore(_name_field),
                TopicsGiven(_name_field),
            )
        ),
        channels.ListChannels: Operation((OfKind(lambda request: request.kind, "list"),)),
        channels.OpenChannel: _named("open"),
        channels.DeleteChannel: _named("delete"),
        channels.DescribeChannel: _named("describe"),
        channels.MaintainChannel: _named("maintain"),
        channels.PurgeChannel: _with_optional_selector(PURGE),
        channels.CountPurge: _counting(PURGE),
        channels.DescribeColumns: _numbered(COLUMNS),
        channels.Locate: _numbered(READ),
        channels.DescribeMissing: _numbered(READ),
        channels.OpenSchedule: _numbered(OPEN),
        # Publishing
        publishing.PublishEvents: _numbered(PUBLISH),
        publishing.StageEvents: _numbered(PUBLISH),
        publishing.CommitStages: _numbered(PUBLISH),
        publishing.CommitStagedParts: Operation(
            (Numbered(PUBLISH, lambda request: [number for number, _ in request.parts]),)
        ),
        publishing.DropStages: _OWN,
        transactions.BeginTransaction: Operation(
            (Numbered(PUBLISH, lambda request: request.channels),)
        ),
        transactions.CommitTransaction: Operation(
            (
                Numbered(PUBLISH, lambda request: [part.channel for part in request.parts]),
                Numbered(PURGE, lambda request: [part.channel for part in request.leaving]),
            )
        ),
        transactions.AbortTransaction: _TRANSACTION,
        transactions.DescribeTransaction: _TRANSACTION,
        # Request and reply. A reply queue belongs to its session, so no right is needed for it.
        requesting.OpenReplyQueue: _on_realm("session.open", _name_field),
        requesting.CloseReplyQueue: _on_realm("session.open", _name_field),
        requesting.OpenReplyTo: Operation(
            (ByName(PUBLISH, lambda request: name_in_address(request.address)),)
        ),
        # Reads that end with one answer
        reading.BrowseEvents: _numbered(READ),
        reading.ReadEvent: _numbered(READ),
        reading.ReadKeyState: _numbered(READ),
        reading.SummarizeDead: _numbered(READ),
        reading.WatchEvents: _numbered(READ),
        reading.BrowseOutstanding: _numbered(BROWSE),
        reading.PopEvents: _numbered(TAKE),
        consuming.FetchEvents: _numbered(TAKE),
        consuming.SettleLease: _numbered(TAKE),
        consuming.ExtendLease: _numbered(TAKE),
        # The right to consume is checked for each channel
        consuming.FetchFromPattern: _on_realm("channel.list"),
        consuming.SettlePatternLease: _on_realm("channel.list"),
        consuming.ExtendPatternLease: _on_realm("channel.list"),
        reading.ExplainSelector: Operation(
            (OnRealm("realm.describe"), ByName(READ, lambda request: request.channel or None))
        ),
        reading.ListScheduled: Operation(
            (OnRealm("realm.describe"), ByName(READ, lambda request: request.channel))
        ),
        reading.CancelScheduled: _numbered(PURGE),
        tables.LoadTable: _numbered(READ),
        tables.LocateTable: _numbered(READ),
        tables.LocateSealedTable: _numbered(READ),
        # MQTT topics. The description of MQTT lists only the channels that the user may read.
        topics.DescribeMqtt: _on_realm("realm.describe"),
        topics.ListTopics: _numbered(READ),
        topics.ReadRetained: _numbered(READ),
        topics.OpenRetained: _numbered(READ),
        topics.ForgetRetained: _numbered(PURGE),
        topics.ListMqttSessions: _on_realm("mqtt.sessions"),
        topics.EndMqttSession: _on_realm(
            "mqtt.session.end", lambda request: f"{request.client_id} {request.user}".rstrip()
        ),
        # Subscriptions
        subscriptions.Subscribe: _numbered(READ),
        subscriptions.Attach: _numbered(TAKE),
        subscriptions.BrowseDurable: _numbered(BROWSE),
        subscriptions.Unsubscribe: _OWN,
        subscriptions.Settle: _OWN,
        subscriptions.Hold: _OWN,
        subscriptions.Bury: _OWN,
        subscriptions.Extend: _OWN,
        patterns.WatchChannels: _on_realm("channel.list"),  # and reading: checked for each channel
        patterns.CreatePatternDurable: _on_realm("pattern.create", _over_pattern),
        patterns.DeletePatternDurable: _on_realm("pattern.delete", _over_pattern),
        patterns.ListPatternDurables: _on_realm("pattern.list"),
        # Durables. A queue has none; a user who may open the queue is told so.
        durables.ListDurables: _numbered(("durable.list", "queue.open")),
        durables.DescribeDurable: _numbered(("durable.describe", "queue.open")),
        durables.DescribeOutstanding: _numbered(BROWSE),
        durables.DescribeDelivery: Operation(
            (
                Numbered(("durable.delivery", "queue.peek"), _channel_field),
                DeadEventsRead(lambda request: request.reads_dead),
            )
        ),
        durables.CreateDurable: _with_optional_selector(("durable.create", "queue.open")),
        durables.DeleteDurable: _numbered(("durable.delete", "queue.open")),
        durables.PurgeDurable: _with_optional_selector(("durable.purge", "queue.open")),
        durables.CountDurablePurge: _counting(("durable.purge", "queue.open")),
        durables.UnbindDurable: _numbered(("durable.unbind", "queue.open")),
        durables.SeekDurable: _numbered(("durable.seek", "queue.open")),
        durables.PreviewSeek: _numbered(("durable.preview", "queue.open")),
        # Copies of whole stores: exports, imports and backups
        transfers.BeginExport: _named("export"),
        transfers.ReadExport: _OWN,
        transfers.EndExport: _OWN,
        transfers.BeginImport: Operation(
            (
                OnRealm("channel.import"),
                DeadEventStore(lambda _: ""),
                TopicsGiven(_name_field, is_new=True),
            ),
            _name_field,
        ),
        transfers.PutImport: _OWN,
        transfers.CommitImport: _OWN,
        transfers.AbortImport: _OWN,
        transfers.ExportTar: _named("export"),
        transfers.ImportTar: _on_realm(
            "channel.import", _name_field
        ),  # and the rights of its manifest
        transfers.BeginBackup: _on_realm("realm.backup"),
        transfers.ReadBackup: _OWN,
        transfers.EndBackup: _OWN,
        # Joins and dead events
        joins.CreateJoin: Operation(
            (
                OnRealm("join.create"),
                ByName(READ, lambda request: request.source),
                ByName(PUBLISH, lambda request: request.destination, may_be_elsewhere=True),
            ),
            _join,
        ),
        joins.CopyIn: Operation((ByName(PUBLISH, lambda request: request.destination),)),
        joins.DeleteJoin: _on_realm("join.delete", _join),
        joins.ListJoins: _on_realm("join.list"),
        joins.Redrive: Operation(
            (
                ByName(REDRIVE, lambda request: request.source),
                ByName(READ, lambda request: request.source if request.reveals_events else None),
                ByName(PUBLISH, lambda request: request.destination or None),
            )
        ),
        # The realm and its users
        realm.Ping: _OWN,
        realm.DescribeRealm: _on_realm("realm.describe"),
        realm.PausePublishing: _on_realm("realm.pause"),
        realm.ListConnections: _on_realm("connection.list"),
        realm.EndConnection: _on_realm("connection.end", lambda request: request.id),
        realm.DescribeCluster: _on_realm("realm.watch"),
        realm.ListPipelines: _on_realm("realm.watch"),
        realm.DescribePipeline: _on_realm("realm.watch"),
        realm.ReadRates: _on_realm("realm.watch"),
        realm.ReadHistory: _on_realm("realm.watch"),
        access.LogIn: Operation(is_open=True),
        access.IssueToken: Operation(is_open=True),
        access.LogOut: _OWN,
        access.WhoAmI: _on_realm("me.read"),
        access.BeginPassword: _on_realm("me.read"),
        access.ChangePassword: _on_realm("me.password"),
        access.ResetPassword: _on_realm("user.change", _name_field),
        access.AddUser: _on_realm("user.change", _name_field),
        access.SetPassword: Operation((PasswordTarget(),), _name_field),
        access.ListUsers: _on_realm("user.list"),
        access.CreateUser: _on_realm("user.change", _name_field),
        access.DeleteUser: _on_realm("user.change", _name_field),
        access.ListGroups: _on_realm("group.list"),
        access.CreateGroup: _on_realm("group.change", _name_field),
        access.ChangeGroup: _on_realm("group.change", _name_field),
        access.DeleteGroup: _on_realm("group.change", _name_field),
        access.ListEntries: Operation((OfResource("acl.read"),)),
        access.Grant: Operation((OfResource("acl.change"),), _entry("+")),
        access.Revoke: Operation((OfResource("acl.change"),), _entry("-", "all")),
        access.ReadAudit: _on_realm("audit.read"),
    }
)
"""Each request of the realm's API with the operations it needs."""
