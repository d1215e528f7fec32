"""Penstock: a messaging server whose channels are Arrow tables.

::

    import penstock

    with penstock.Realm("./data") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"...", properties={"price": 9.5})

The names to begin with, each with its own ``help(penstock.…)``:

====================  ======================================================================
``Realm``             a server in this program: ``Realm("./data")``, ``Realm()`` in memory
``connect``           a session at a server: ``connect("penstock://localhost:9000")``
``Session``           ``session.channels``, ``.queues``, ``.joins``, ``.access``, transactions
``Channel``           ``publish``, ``subscribe``, ``read`` (an Arrow table), ``durables``
``Queue``             ``push``, ``pop``, ``reader``: each event is for one reader
``Durable``           what a group of readers has acknowledged: ``subscribe``, ``fetch``
``Event``             what is published; a ``DeliveredEvent`` has ``ack`` and ``rollback``
``PenstockError``     the base of all errors, such as ``NameDoesNotExist``
``segments``          the sealed files of a data directory as an Arrow table
``penstock.aio``      all of this for asyncio
====================  ======================================================================

The command line says the same with ``penstock --help``. What follows below is every public name
with all its methods, and long.

It is installed as ``penstock-realm``, or as ``penstock-client`` without the server; the package
named just ``penstock`` is somebody else's.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock_core.version import __version__

if TYPE_CHECKING:  # loaded at first use; a test keeps both lists equal
    from penstock import aio
    from penstock.client.handles.attributes import (
        BackoffTimes,
        ChannelAttributes,
        ChannelType,
        DurableType,
        EditedAttributes,
        Engine,
        QueueAttributes,
        StorageProperties,
    )
    from penstock.client.handles.schedule import Scheduled
    from penstock.client.publishing.event_attributes import EventAttributes, RequestAttributes
    from penstock.client.reading.key_state import KeyState
    from penstock.client.reading.peeking import Peeked
    from penstock.client.sync.sync import (
        Access,
        Channel,
        Channels,
        Destination,
        Durable,
        DurableHold,
        Durables,
        DurableSubscription,
        Joins,
        JointTransaction,
        Queue,
        Queues,
        Reader,
        Schedule,
        Session,
        Subscription,
        Transaction,
        connect,
    )
    from penstock.client.sync.sync_delivered import DeliveredBatch, DeliveredEvent
    from penstock.client.sync.sync_merging import Registered
    from penstock.client.sync.sync_pattern_durables import PatternDurables
    from penstock.client.sync.sync_pattern_subscription import (
        PatternDurableSubscription,
        PatternSubscription,
    )
    from penstock.client.sync.sync_producer import Producer
    from penstock.client.sync.sync_received import ReceivedBatch, ReceivedEvent
    from penstock.tables.segments import segments
    from penstock_core.columns.events.batch import EventBatch
    from penstock_core.columns.events.event import Event, Origin
    from penstock_core.vocabulary.errors import (
        AccessDenied,
        AddressInUse,
        AlreadyAborted,
        AlreadyCommitted,
        AuthenticationFailed,
        CannotConnect,
        CapacityReached,
        Conflict,
        ConnectionLost,
        Corrupt,
        CrossSite,
        Damaged,
        DamagedBackup,
        DamagedExport,
        DataDirectoryInUse,
        DataLost,
        Deposed,
        DifferentContent,
        DurableInUse,
        DurableUnbound,
        Elsewhere,
        EventTooLarge,
        Fenced,
        IllegalState,
        InsecureConnection,
        Internal,
        InvalidArgument,
        InvalidDescriptor,
        InvalidEvent,
        InvalidName,
        InvalidSelector,
        LeaseEnded,
        LimitReached,
        LocalProtocolViolation,
        MemoryLimit,
        NameAlreadyBound,
        NameDoesNotExist,
        NewerFormat,
        NoQuorum,
        NoReply,
        NoSuchStage,
        NoSuchTransaction,
        PenstockError,
        ProtocolViolation,
        PublishingPaused,
        RealmStopping,
        Refused,
        RemoteProtocolViolation,
        SequenceTooOld,
        SessionClosed,
        SignInLocked,
        StepFailed,
        StorageFailed,
        Trimmed,
        Unavailable,
        Unknown,
    )
    from penstock_server.bootstrap.embedded_realm import Realm

_HOMES = {
    "penstock_server.bootstrap.embedded_realm": ("Realm",),
    "penstock.client.handles.attributes": (
        "BackoffTimes",
        "ChannelAttributes",
        "ChannelType",
        "DurableType",
        "EditedAttributes",
        "Engine",
        "QueueAttributes",
        "StorageProperties",
    ),
    "penstock.client.publishing.event_attributes": ("EventAttributes", "RequestAttributes"),
    "penstock.client.reading.key_state": ("KeyState",),
    "penstock.client.reading.peeking": ("Peeked",),
    "penstock.client.handles.schedule": ("Scheduled",),
    "penstock.client.sync.sync": (
        "Access",
        "Channel",
        "Channels",
        "Destination",
        "Durable",
        "DurableHold",
        "DurableSubscription",
        "Durables",
        "Joins",
        "JointTransaction",
        "Queue",
        "Queues",
        "Reader",
        "Schedule",
        "Session",
        "Subscription",
        "Transaction",
        "connect",
    ),
    "penstock.client.sync.sync_delivered": ("DeliveredBatch", "DeliveredEvent"),
    "penstock.client.sync.sync_merging": ("Registered",),
    "penstock.client.sync.sync_pattern_durables": ("PatternDurables",),
    "penstock.client.sync.sync_pattern_subscription": (
        "PatternDurableSubscription",
        "PatternSubscription",
    ),
    "penstock.client.sync.sync_producer": ("Producer",),
    "penstock.client.sync.sync_received": ("ReceivedBatch", "ReceivedEvent"),
    "penstock_core.columns.events.batch": ("EventBatch",),
    "penstock_core.columns.events.event": ("Event", "Origin"),
    "penstock.tables.segments": ("segments",),
}
"""Loaded when first used: a client does not import the server, nor a look at the version Arrow.
What is in none of these is an error of ``penstock_core.vocabulary.errors``."""

__all__ = [
    "Access",
    "AccessDenied",
    "AddressInUse",
    "AlreadyAborted",
    "AlreadyCommitted",
    "AuthenticationFailed",
    "BackoffTimes",
    "CannotConnect",
    "CapacityReached",
    "Channel",
    "ChannelAttributes",
    "ChannelType",
    "Channels",
    "Conflict",
    "ConnectionLost",
    "Corrupt",
    "CrossSite",
    "Damaged",
    "DamagedBackup",
    "DamagedExport",
    "DataDirectoryInUse",
    "DataLost",
    "DeliveredBatch",
    "DeliveredEvent",
    "Deposed",
    "Destination",
    "DifferentContent",
    "Durable",
    "DurableHold",
    "DurableInUse",
    "DurableSubscription",
    "DurableType",
    "DurableUnbound",
    "Durables",
    "EditedAttributes",
    "Elsewhere",
    "Engine",
    "Event",
    "EventAttributes",
    "EventBatch",
    "EventTooLarge",
    "Fenced",
    "IllegalState",
    "InsecureConnection",
    "Internal",
    "InvalidArgument",
    "InvalidDescriptor",
    "InvalidEvent",
    "InvalidName",
    "InvalidSelector",
    "Joins",
    "JointTransaction",
    "KeyState",
    "LeaseEnded",
    "LimitReached",
    "LocalProtocolViolation",
    "MemoryLimit",
    "NameAlreadyBound",
    "NameDoesNotExist",
    "NewerFormat",
    "NoQuorum",
    "NoReply",
    "NoSuchStage",
    "NoSuchTransaction",
    "Origin",
    "PatternDurableSubscription",
    "PatternDurables",
    "PatternSubscription",
    "Peeked",
    "PenstockError",
    "Producer",
    "ProtocolViolation",
    "PublishingPaused",
    "Queue",
    "QueueAttributes",
    "Queues",
    "Reader",
    "Realm",
    "RealmStopping",
    "ReceivedBatch",
    "ReceivedEvent",
    "Refused",
    "Registered",
    "RemoteProtocolViolation",
    "RequestAttributes",
    "Schedule",
    "Scheduled",
    "SequenceTooOld",
    "Session",
    "SessionClosed",
    "SignInLocked",
    "StepFailed",
    "StorageFailed",
    "StorageProperties",
    "Subscription",
    "Transaction",
    "Trimmed",
    "Unavailable",
    "Unknown",
    "__version__",
    "aio",
    "connect",
    "segments",
]


def _loaded(name: str) -> ModuleType:
    """A module. Nothing that comes with it goes away again, so Python does not look for what does
    meanwhile: that took a tenth of the time to a realm's first event."""
    from penstock.missing_packages import from_package
    from penstock_core.garbage import age_all, uncollected

    with uncollected(), from_package("penstock_server"):
        module = importlib.import_module(name)
        age_all()
        return module


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "aio":
            return importlib.import_module("penstock.aio")
        if name not in __all__:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        homes = [module for module, names in _HOMES.items() if name in names]
        found = getattr(_loaded(homes[0] if homes else "penstock_core.vocabulary.errors"), name)
        globals()[name] = found  # later uses find it directly
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
