"""Why the realm says no.

Text is for people and may improve; ``code`` is the contract, stable for ever. The tree:

    PenstockError
    ├── Refused             you may not; nothing has changed
    ├── Unavailable         not now; trying again may help
    ├── Internal            a fault of the realm; its log says which
    ├── Corrupt             the disk says something it should not
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
    """Whether an event or argument of the request is the cause: other input may succeed."""


class Refused(PenstockError):
    """The request is understood and will not be done. Nothing has changed."""

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
    """Protocol Buffers descriptors that do not parse, or do not fit together (SEM P4)."""

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
    """Events that were to be read have left: expired, evicted, purged, consumed (SEM T8)."""

    code = "data-lost"


class IllegalState(Refused):
    """The operation does not fit the state of what it names (SEM D15)."""

    code = "illegal-state"


class LeaseEnded(Refused):
    """What a lease held has gone back (SEM H1): it was not settled in time, or the realm
    restarted."""

    code = "lease-ended"


class SequenceTooOld(Refused):
    """A retried publish is older than what the realm remembers of this producer (SEM X3)."""

    code = "sequence-too-old"


class DifferentContent(Refused):
    """A publish of this producer and sequence is stored with other content (SEM X3), most likely
    because an older copy of a checkpoint was restored. Nothing was stored."""

    code = "different-content"


class NoSuchStage(Refused):
    """Staged rows are unknown: never staged, dropped, expired, or lost in a restart or when another
    node took over."""

    code = "no-such-stage"
    retryable = True


class NoSuchTransaction(Refused):
    """Never begun here, or ended more than a day ago (SEM X2), or open when the realm restarted or
    another node took over: then nothing of it is stored."""

    code = "no-such-transaction"


class AlreadyCommitted(Refused):
    """The transaction was committed before; its events are stored once (SEM X2)."""

    code = "already-committed"


class AlreadyAborted(Refused):
    """The transaction was aborted before; none of its events is stored (SEM X2)."""

    code = "already-aborted"


class PublishingPaused(Refused):
    """An administrator has paused publishing; consumers and administration go on (SEM X5)."""

    code = "publishing-paused"
    retryable = True


class DamagedExport(Refused):
    """An export is incomplete, was altered or contradicts itself; nothing of it was imported."""

    code = "damaged-export"


class DamagedBackup(Refused):
    """A backup is incomplete or was altered; nothing of it was restored."""

    code = "damaged-backup"


class AccessDenied(Refused):
    """A right is missing; the message names it and what it is a right on (SEM A3)."""

    code = "access-denied"


class AuthenticationFailed(Refused):
    """The client is not authenticated: a wrong password or token, or none where one is needed."""

    code = "authentication-failed"


class SignInLocked(AuthenticationFailed):
    """Too many sign-ins of this user, or from this host, have failed: the password was not even
    looked at. The message tells how many seconds to wait."""

    code = "sign-in-locked"
    retryable = True

    def __init__(self, text: str = "", wait_s: float = 1.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class CrossSite(Refused):
    """A page of another site made a browser ask, or one that is found under a strange name."""

    code = "cross-site"


class Unavailable(PenstockError):
    """The realm cannot do this now. Trying again later may succeed."""

    code = "unavailable"
    retryable = True


class NoReply(Unavailable):
    """No reply to a request came in time (SEM R1). The request may have been done all the same."""

    code = "no-reply"


class ConnectionLost(Unavailable):
    """The connection ended before the answer came. The outcome is unknown, unless the text says
    that nothing was done."""

    code = "connection-lost"


class CannotConnect(Unavailable):
    """None of the URLs led to a realm."""

    code = "cannot-connect"


class SessionClosed(Unavailable):
    """The session, subscription or producer has been closed and cannot be used any more."""

    code = "session-closed"
    retryable = False


class LimitReached(Unavailable):
    """A limit of the realm or of one connection is reached; the message names it and its
    setting. Nothing of the request was done, and the session goes on."""

    code = "limit-reached"


class RealmStopping(Unavailable):
    """The realm is shutting down, or a failed write made it stop serving."""

    code = "realm-stopping"


class StorageFailed(Unavailable):
    """The disk refused a write (full, failing). Nothing of the request was kept."""

    code = "storage-failed"


class NoQuorum(Unavailable):
    """The engine of the cluster has no majority of its servers: nothing can be stored until it has
    one again. What was asked before is not refused; its outcome is open."""

    code = "no-quorum"


class Elsewhere(Unavailable):
    """Another node of the cluster owns what was asked about, or will soon; the message says which,
    if it is known."""

    code = "elsewhere"


class AddressInUse(Unavailable):
    """The port is taken by another process."""

    code = "address-in-use"


class DataDirectoryInUse(Unavailable):
    """Another realm has this data directory open."""

    code = "data-directory-in-use"


class InsecureConnection(Refused):
    """A password or token came over the network without TLS. It was not checked, and anyone who can
    listen to the network may have read it."""

    code = "insecure-connection"


class Internal(PenstockError):
    """The realm failed unexpectedly; its log describes the failure under the incident that the
    message names. Whether anything was done is unknown."""

    code = "internal"


class Corrupt(PenstockError):
    """Stored bytes are not what was written. Nothing is deleted; someone should look."""

    code = "corrupt"


class Damaged(Corrupt):
    """A block, segment or record fails its checksum or is missing."""

    code = "damaged"


class NewerFormat(Corrupt):
    """The data directory was written by a newer version of Penstock."""

    code = "newer-format"


class Fenced(PenstockError):
    """Another process has written to the same place. Root of the two below; never raised itself."""

    code = "fenced"


class Conflict(Fenced):
    """Another client was faster: a record has another version than expected, or a name is taken by
    other bytes. Nothing has changed."""

    code = "conflict"


class Deposed(Fenced):
    """A newer owner writes to this journal. What the older owner knows may be out of date, its last
    append may be stored or not: it answers and delivers nothing any more."""

    code = "deposed"


class Unknown(PenstockError):
    """The store was closed while an answer was awaited: whether anything was stored is unknown."""

    code = "unknown"


class Trimmed(PenstockError):
    """A read below the journal's floor."""

    code = "trimmed"


class StepFailed(PenstockError):
    """A step of a pipeline failed for good; the message names it and the cause."""

    code = "step-failed"


class ProtocolViolation(PenstockError):
    """Root of the two below; never raised itself."""

    code = "protocol-violation"


class LocalProtocolViolation(ProtocolViolation):
    """Deprecated: nothing raises it. Catch ``ProtocolViolation``."""

    code = "local-protocol-violation"


class RemoteProtocolViolation(ProtocolViolation):
    """The other side sent what the protocol does not allow."""

    code = "remote-protocol-violation"


def _leaves(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {root.code: root}
    for child in root.__subclasses__():
        for code, leaf in _leaves(child).items():
            found.setdefault(code, leaf)  # a class that only adds details keeps its parent's code
    return found


def error_classes() -> dict[str, type[PenstockError]]:
    """Every error class by its code; the wire carries codes."""
    return _leaves(PenstockError)
