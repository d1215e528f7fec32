"""Penstock: a messaging server whose channels are Arrow tables.

::

    import penstock

    with penstock.Realm("./data") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"...", properties={"price": 9.5})

The main names; ``help(penstock.Channel)`` shows the help of one:

====================  ======================================================================
``Realm``             a server in this program: ``Realm("./data")``, ``Realm()`` in memory
``connect``           a session with a server: ``connect("penstock://localhost:9000")``
``Session``           ``session.channels``, ``.queues``, ``.joins``, ``.access``, transactions
``Channel``           ``publish``, ``subscribe``, ``read`` (an Arrow table), ``durables``
``Queue``             ``push``, ``pop``, ``reader``: each event goes to one reader
``Durable``           stored progress of a group of readers: ``subscribe``, ``fetch``
``Event``             an event to publish; a ``DeliveredEvent`` has ``ack`` and ``rollback``
``PenstockError``     the base class of all errors, such as ``NameDoesNotExist``
``segments``          the sealed files of a data directory as an Arrow table
``penstock.aio``      the same classes for asyncio
====================  ======================================================================

The command line has its own help, ``penstock --help``. The rest of this text lists all public names
and methods.

Install the package ``penstock-realm``, or ``penstock-client`` without the server. The package that
is named just ``penstock`` is an unrelated project.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock_core.version import __version__

if TYPE_CHECKING:  # at run time names are imported at first use; a test compares both lists
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
"""Public names by module, imported at first use: a client does not import the server, and a program
that only reads the version does not import Arrow. All other public names are errors of
``penstock_core.vocabulary.errors``."""

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


def _import(name: str) -> ModuleType:
    """Import a module and return it.

    Garbage collection is paused during the import, because the objects of modules are never freed;
    collecting took a tenth of the time until the first event of a realm.
    """
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
        home = homes[0] if homes else "penstock_core.vocabulary.errors"
        globals()[name] = getattr(_import(home), name)  # later uses do not call this function
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
