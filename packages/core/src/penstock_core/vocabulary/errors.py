"""Errors.

The text of an error is for people and may be improved; ``code`` is the contract and never changes.
The tree:

    PenstockError
    ├── Refused             the request is not allowed; nothing has changed
    ├── Unavailable         the request cannot be done now; a retry may succeed
    ├── Internal            a fault of the realm, described in its log
    ├── Corrupt             stored bytes are damaged
    ├── Fenced              another process was faster, or is the owner now
    └── ProtocolViolation   one side broke the protocol
        ├── LocalProtocolViolation    deprecated: nothing raises it
        └── RemoteProtocolViolation   the other side
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Root of every error this package raises on purpose."""

    code: ClassVar[str] = "penstock"
    retryable: ClassVar[bool] = False
    blames_input: ClassVar[bool] = False
    """Whether an event or argument of the request is the cause, so that other input may succeed."""


class Refused(PenstockError):
    """The realm has understood the request and refuses to perform it. Nothing has changed."""

    code = "refused"


class InvalidName(Refused):
    """A channel or queue name breaks the rules of names (SEM C2)."""

    code = "invalid-name"
    blames_input = True


class NameAlreadyBound(Refused):
    """The name is taken by another channel, queue or durable."""

    code = "name-already-bound"


class NameDoesNotExist(Refused):
    """No channel, queue or durable has this name."""

    code = "name-does-not-exist"
    blames_input = True


class InvalidArgument(Refused):
    """An argument is out of bounds, of the wrong type, or not allowed in this combination."""

    code = "invalid-argument"
    blames_input = True


class InvalidEvent(Refused):
    """The data cannot be an event: a property or column has an unsupported type."""

    code = "invalid-event"
    blames_input = True


class EventTooLarge(Refused):
    """An event is larger than the realm's ``max_event_bytes`` (SEM E7)."""

    code = "event-too-large"
    blames_input = True


class InvalidSelector(Refused):
    """A selector does not parse; the message has line, column and what was expected (SEM F4)."""

    code = "invalid-selector"
    blames_input = True


class InvalidDescriptor(Refused):
    """The Protocol Buffers descriptors do not parse, or do not fit together (SEM P4)."""

    code = "invalid-descriptor"
    blames_input = True


class CapacityReached(Refused):
    """The channel is full and honours its capacity instead of evicting (SEM T4)."""

    code = "capacity-reached"
    retryable = True


class MemoryLimit(Refused):
    """A memory-backed channel has reached the realm's limit (SEM C6)."""

    code = "memory-limit"
    retryable = True


class DurableInUse(Refused):
    """Another session holds the durable and its type allows only one (SEM D), or has made the
    temporary queue or topic (SEM R2)."""

    code = "durable-in-use"
    retryable = True


class DurableUnbound(Refused):
    """An administrator ended this subscription of a durable (SEM D14); another may be opened."""

    code = "durable-unbound"


class DataLost(Refused):
    """Requested events have left the channel: expired, evicted, purged or consumed (SEM T8)."""

    code = "data-lost"


class IllegalState(Refused):
    """The operation is not possible in the current state of the channel, durable or event
    (SEM D15)."""

    code = "illegal-state"


class LeaseEnded(Refused):
    """The events of a lease have been taken back (SEM H1), because they were not settled in time or
    the realm restarted."""

    code = "lease-ended"


class SequenceTooOld(Refused):
    """A retried publish is older than what the realm remembers of this producer (SEM X3)."""

    code = "sequence-too-old"


class DifferentContent(Refused):
    """A publish of this producer and sequence is stored with other content (SEM X3), most likely
    because an older copy of a checkpoint was restored. Nothing was stored."""

    code = "different-content"


class NoSuchStage(Refused):
    """Staged rows are unknown: never staged, dropped, expired, or lost in a restart or failover."""

    code = "no-such-stage"
    retryable = True


class NoSuchTransaction(Refused):
    """The transaction was never begun, or ended more than a day ago (SEM X2), or was open at a
    restart or failover. In the last case none of its events is stored."""

    code = "no-such-transaction"


class AlreadyCommitted(Refused):
    """The transaction has already been committed; its events are stored once (SEM X2)."""

    code = "already-committed"


class AlreadyAborted(Refused):
    """The transaction has already been aborted; none of its events is stored (SEM X2)."""

    code = "already-aborted"


class PublishingPaused(Refused):
    """An administrator has paused publishing; consumers and administration continue (SEM X5)."""

    code = "publishing-paused"
    retryable = True


class DamagedExport(Refused):
    """An export is incomplete, was altered or contradicts itself; no part of it was imported."""

    code = "damaged-export"


class DamagedBackup(Refused):
    """A backup is incomplete or was altered; no part of it was restored."""

    code = "damaged-backup"


class AccessDenied(Refused):
    """A right is missing; the message names the right and its object (SEM A3)."""

    code = "access-denied"


class AuthenticationFailed(Refused):
    """The client is not authenticated: a wrong password or token, or none where one is needed."""

    code = "authentication-failed"


class SignInLocked(AuthenticationFailed):
    """Too many sign-ins of this user, or from this host, have failed, so the password was not
    checked. The message contains the seconds to wait."""

    code = "sign-in-locked"
    retryable = True

    def __init__(self, text: str = "", wait_s: float = 1.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class CrossSite(Refused):
    """A browser sent the request for a page of another site, or for an unknown host name."""

    code = "cross-site"


class Unavailable(PenstockError):
    """The realm cannot do this now. Trying again later may succeed."""

    code = "unavailable"
    retryable = True


class NoReply(Unavailable):
    """No reply to a request arrived in time (SEM R1). The request may have been performed."""

    code = "no-reply"


class ConnectionLost(Unavailable):
    """The connection ended before the answer arrived. The outcome is unknown, unless the text
    states that the request was not performed."""

    code = "connection-lost"


class CannotConnect(Unavailable):
    """No realm could be reached at any address of the URL."""

    code = "cannot-connect"


class SessionClosed(Unavailable):
    """The session, subscription or producer has been closed and cannot be used any more."""

    code = "session-closed"
    retryable = False


class LimitReached(Unavailable):
    """A limit of the realm or of one connection is reached; the message names it and its setting.
    The request was not performed, and the session continues."""

    code = "limit-reached"


class RealmStopping(Unavailable):
    """The realm is shutting down, or a failed write made it stop serving."""

    code = "realm-stopping"


class StorageFailed(Unavailable):
    """The disk refused a write (full, failing). No part of the request was stored."""

    code = "storage-failed"


class NoQuorum(Unavailable):
    """The engine of the cluster has no majority of its servers and cannot store anything until it
    has one again. The outcome of earlier requests is open; they are not refused."""

    code = "no-quorum"


class Elsewhere(Unavailable):
    """Another node of the cluster owns the requested channel, or will soon; the message names it if
    it is known."""

    code = "elsewhere"


class AddressInUse(Unavailable):
    """The port is taken by another process."""

    code = "address-in-use"


class DataDirectoryInUse(Unavailable):
    """Another realm has this data directory open."""

    code = "data-directory-in-use"


class InsecureConnection(Refused):
    """A password or token was sent over the network without TLS. It was not checked, and may have
    been read by others on the network."""

    code = "insecure-connection"


class Internal(PenstockError):
    """The realm failed unexpectedly; its log describes the failure under the incident named in the
    message. The outcome of the request is unknown."""

    code = "internal"


class Corrupt(PenstockError):
    """Stored bytes differ from the bytes written. They are kept for an administrator to inspect."""

    code = "corrupt"


class Damaged(Corrupt):
    """A block, segment or record fails its checksum or is missing."""

    code = "damaged"


class NewerFormat(Corrupt):
    """The data directory was written by a newer version of Penstock."""

    code = "newer-format"


class Fenced(PenstockError):
    """Another process has written to the same place. Base class of ``Conflict`` and ``Deposed``,
    which are raised instead of this class."""

    code = "fenced"


class Conflict(Fenced):
    """Another client was faster: a record has another version than expected, or a name is taken by
    other bytes. Nothing has changed."""

    code = "conflict"


class Deposed(Fenced):
    """A newer owner writes to this journal. The state of the older owner may be out of date, and
    its last append may be stored or not, so it stops answering and delivering."""

    code = "deposed"


class Unknown(PenstockError):
    """The store was closed before it answered, so the outcome of the write is unknown."""

    code = "unknown"


class Trimmed(PenstockError):
    """A read of the journal began at a sequence whose blocks were removed."""

    code = "trimmed"


class StepFailed(PenstockError):
    """A step of a pipeline failed for good; the message names it and the cause."""

    code = "step-failed"


class ProtocolViolation(PenstockError):
    """Base class of the local and remote violations, which are raised instead of this class."""

    code = "protocol-violation"


class LocalProtocolViolation(ProtocolViolation):
    """Deprecated: never raised. Catch ``ProtocolViolation``."""

    code = "local-protocol-violation"


class RemoteProtocolViolation(ProtocolViolation):
    """The other side sent data that the protocol does not allow."""

    code = "remote-protocol-violation"


def _leaves(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    """Return the class of each error code, for ``root`` and all its subclasses."""
    classes: dict[str, type[PenstockError]] = {root.code: root}
    for child in root.__subclasses__():
        for code, leaf in _leaves(child).items():
            classes.setdefault(code, leaf)  # a class that only adds details keeps its parent's code
    return classes


def error_classes() -> dict[str, type[PenstockError]]:
    """Return all error classes by code; the wire protocol carries codes."""
    return _leaves(PenstockError)
