"""Stores sessions: a channel with the newest entry of each (SEM M6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from penstock_core.access.rights import Principal, Proof
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.event import Event
from penstock_core.loggers import logger
from penstock_core.realm.internal_stores import ENTRY, session_store
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.topics import filter_fault
from penstock_mqtt.messages import REMOVAL_MS
from penstock_mqtt.newest_events import KeyedChannel
from penstock_mqtt.reasons import reported
from penstock_mqtt.wire.framing import PacketReader
from penstock_mqtt.wire.packets import MQTT_5, PublishPacket
from penstock_mqtt.wire.reading import filter_of, packet_of
from penstock_mqtt.wire.reasons import malformed
from penstock_server.runtime.reading.stretches import pages_of
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.writer.requests import Reply

PACKET_ID_MAX: Final = 65_535
TOGETHER_BYTES_MAX: Final = 1 << 16
"""Entries of a client with more bytes than this are stored in a separate step."""
SESSION, RECEIVED, SENT = "session", "received", "sent"
"""Kinds of entries: a session, a received message of QoS 2, a sent one."""


_log = logger("penstock.mqtt")


NEVER: Final = 0xFFFF_FFFF
"""Session expiry in seconds of a session that never expires."""
Seconds = Annotated[int, Meta(ge=0, le=NEVER)]


class StoredFilter(Struct, frozen=True, omit_defaults=True):
    """A subscription of a session."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    number: int | None = None
    """The subscription identifier."""
    durable: str = ""
    """Name of the durable that holds its messages; empty with QoS 0."""
    owes_retained: bool = False
    """Whether the client may lack retained messages that matched when it subscribed."""


class StoredWill(Struct, frozen=True, omit_defaults=True):
    """The will of a client, published if it does not reconnect in time."""

    packet: bytes
    """The PUBLISH in the form of MQTT 5."""
    delay_s: Seconds = 0


class StoredPrincipal(Struct, frozen=True, omit_defaults=True):
    """The user of a session. Rights are checked when they are needed. Neither the groups of the
    user's token are stored, nor whether the user was trusted."""

    user: str
    host: str
    proof: Proof = "none"
    until_us: int = 0
    certificate: tuple[str, ...] = ()

    @property
    def principal(self) -> Principal:
        return Principal(
            self.user,
            self.host,
            proof=self.proof,
            until_us=self.until_us,
            certificate=self.certificate,
        )


def stored_principal(principal: Principal) -> StoredPrincipal:
    """Return a principal in its stored form."""
    return StoredPrincipal(
        principal.user,
        principal.host,
        principal.proof,
        until_us=principal.until_us,
        certificate=principal.certificate,
    )


class SessionRecord(Struct, frozen=True, omit_defaults=True):
    """A session in its stored form."""

    client_id: str
    principal: StoredPrincipal
    """The owner of the session, which publishes its will."""
    expiry_s: Seconds = 0
    """Seconds that the session outlives its connection; :data:`NEVER` for no limit."""
    ended_us: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """End of the last connection in microseconds since 1970; 0 while the client is connected."""
    will: StoredWill | None = None
    filters: tuple[StoredFilter, ...] = ()


class SentRecord(Struct, frozen=True, omit_defaults=True):
    """A message of QoS 2 in delivery to a client. Its packet id is stored until the client has
    completed the message, so that the client recognizes a repetition after a crash (4.3.3)."""

    source: str
    """Text of the filter that delivers it to the client."""
    event_id: int
    from_retained: bool = False
    """Whether the event is in the channel of retained messages."""
    is_released: bool = False
    """Whether the client has the message, so that only PUBREL and PUBCOMP remain."""
    channel: str = ""
    """Name of the channel with topics that holds the event; empty for the channel of all topics."""


Entry = tuple[str, bytes]
"""The name and the value of an entry; an empty value removes the entry."""
Answer = Callable[[PenstockError | None], None]
"""Called when entries are stored (None) or refused (the error)."""


class StoredEntries(Struct):
    """All stored entries, by the place of their session (:func:`place_of`)."""

    sessions: dict[str, SessionRecord]
    received: dict[str, list[int]]
    """Packet ids of received messages of QoS 2 that are not released."""
    sent: dict[str, dict[int, SentRecord]]
    """Sent messages of QoS 2, by packet id."""
    unreadable: list[str] = []
    """The first entries that could not be read, each with the reason."""
    unreadable_count: int = 0


UNREADABLE_NAMED: Final = 10
"""Maximum number of unreadable entries whose names and reasons are logged."""


class SessionStore(KeyedChannel):
    """The channel ``<channel>-sessions``."""

    def __init__(self, realm: RunningRealm, all_topics: str) -> None:
        super().__init__(realm, all_topics, session_store(all_topics))
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Sequence[Entry], Answer]] = []

    def _type(self, type_of_all: str) -> str:
        return "persistent"

    # --- writing -------------------------------------------------------------------------

    def part(self, entries: Sequence[Entry]) -> tuple[ChannelId, list[Body]]:
        """Return entries as a part of a publish in several channels."""
        # The channel keeps only the newest entry of a name, so earlier ones need not be stored.
        newest = dict(entries)
        body = body_of_columns(
            list(newest.values()),
            None,
            [{ENTRY: name} for name in newest],
            ttls=[None if value else REMOVAL_MS for value in newest.values()],
        )
        return self.channel(), [body_from(body)]

    def submit(self, part: tuple[ChannelId, list[Body]], reply: Reply) -> None:
        """Store entries; ``reply`` is called once they are on disk."""
        try:
            self._realm.publish(*part, "", 0, reply)
        except Exception as error:  # noqa: BLE001  the callers must get an answer
            reply(None, error)

    def write(self, entries: Sequence[Entry], answer: Answer) -> None:
        """Store entries with the others of this turn of the loop."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append((entries, answer))

    async def put(self, entries: Sequence[Entry]) -> None:
        """Store entries. Raises the errors of a publish."""
        done: asyncio.Future[None] = self._loop.create_future()

        def answer(error: PenstockError | None) -> None:
            if done.done():  # the waiting task was cancelled
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.write(entries, answer)
        try:
            await done
        except Exception:
            del done  # the error refers to this frame: a cycle
            raise

    def flush(self) -> None:
        """Store the collected entries now."""
        waiting, self._waiting = self._waiting, []
        # Consecutive groups keep the order of entries: of two entries with one name the later
        # counts.
        for is_large, several in groupby(waiting, self._is_large):
            together = list(several)
            for entries_of_step in (
                [[client_entries] for client_entries in together] if is_large else [together]
            ):
                self._submit_together(entries_of_step)

    def _is_large(self, waiting: tuple[Sequence[Entry], Answer]) -> bool:
        """Return whether entries could be too large for the realm, which would then refuse entries
        of other clients with them."""
        size = sum(len(name) + len(data) for name, data in waiting[0])
        return size > min(TOGETHER_BYTES_MAX, self._realm.limits.event_bytes_max // 2)

    def _submit_together(self, waiting: Sequence[tuple[Sequence[Entry], Answer]]) -> None:
        """Store the entries of several clients in one step, or separately if they cannot form an
        event."""

        def reply(_: Any, error: BaseException | None) -> None:
            client_error = None if error is None else reported(error)
            for _entries, answer in waiting:
                try:
                    answer(client_error)
                except Exception:  # noqa: BLE001  other clients must still be answered
                    _log.exception("mqtt.failed")

        try:
            part = self.part([entry for entries, _ in waiting for entry in entries])
        except Exception as error:  # noqa: BLE001  entries of other clients must still be stored
            if len(waiting) == 1:
                reply(None, error)
            for single in waiting if len(waiting) > 1 else ():
                self._submit_together([single])
            return
        self.submit(part, reply)

    # --- reading -------------------------------------------------------------------------

    async def load(self) -> StoredEntries:
        """Return the stored entries when the front end starts. Unreadable entries are skipped, so
        that they do not keep the realm from starting."""
        entries = StoredEntries({}, {}, {})
        channel = await self.open_channel()
        async for page in pages_of(self._realm, channel):
            for event in page:
                if event.data:
                    self._add_entry(event, entries)
        return entries

    @staticmethod
    def _add_entry(event: Event, entries: StoredEntries) -> None:
        try:
            _add_entry(event, entries)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            entries.unreadable_count += 1
            if len(entries.unreadable) < UNREADABLE_NAMED:
                name = str(event.properties.get(ENTRY, ""))[:100]
                entries.unreadable.append(f"event {event.event_id} ({name!r}): {str(error)[:200]}")


def _add_entry(event: Event, entries: StoredEntries) -> None:
    """Add the entry in an event to ``entries``. Raises ``ValueError`` or ``MsgspecError`` if it
    cannot be read, or if its publisher may not have written it."""
    kind, _, name = str(event.properties.get(ENTRY, "")).partition("/")
    # Entries that are stored together with a message have its publisher, the user of the session.
    publisher = event.headers.get("publisher")
    if kind == SESSION:
        record = msgspec.json.decode(event.data, type=SessionRecord)
        if publisher not in (None, "", record.principal.user):
            raise ValueError(f"its publisher {str(publisher)[:80]!r} is not the session's user")
        if name not in (record.client_id, place_of(record.principal.user, record.client_id)):
            raise ValueError(f"it contains the session of client {record.client_id!r} instead")
        for stored in record.filters:
            if fault := filter_fault(filter_of(stored.filter)):
                raise ValueError(fault)
        entries.sessions[name] = record
        return
    number, _, place = name.partition("/")
    if kind == RECEIVED:
        entries.received.setdefault(place, []).append(_packet_id(number))
    elif kind == SENT:
        if publisher:
            raise ValueError(
                f"its publisher is {str(publisher)[:80]!r}, but only the realm stores such entries"
            )
        sent = msgspec.json.decode(event.data, type=SentRecord)
        entries.sent.setdefault(place, {})[_packet_id(number)] = sent
    else:
        raise ValueError("it is neither a session nor a message of QoS 2")


def _packet_id(text: str) -> int:
    """Return the packet id in the name of an entry. Raises ``ValueError``."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:6]) <= PACKET_ID_MAX:
        raise ValueError(f"{text[:20]!r} is not a packet id; allowed are 1 to {PACKET_ID_MAX}")
    return int(text)


def will_packet(will: StoredWill) -> PublishPacket:
    """Return the message of a will. Raises :class:`MqttViolation` if the bytes are not a
    PUBLISH."""
    reader = PacketReader()
    reader.receive(will.packet)
    packets = list(reader.packets())
    packet = packet_of(*packets[0], MQTT_5) if len(packets) == 1 else None
    if isinstance(packet, PublishPacket):
        return packet
    raise malformed("the bytes of a stored will are not one message")


def place_of(user: str, client_id: str) -> str:
    """Return the key under which a session is stored if another user's session has the same client
    id. It differs from every client id, because client ids contain no NUL."""
    return f"{client_id}\0{user}"


def session_entry(place: str, record: SessionRecord) -> Entry:
    """Return the entry of a session, which is stored under ``place``."""
    return f"{SESSION}/{place}", msgspec.json.encode(record)


def session_removed(place: str) -> Entry:
    """Return the entry that removes a session."""
    return f"{SESSION}/{place}", b""


def received_entry(place: str, packet_id: int, *, is_present: bool) -> Entry:
    """Return the entry of a received message of QoS 2; it is removed unless ``is_present``."""
    return f"{RECEIVED}/{packet_id}/{place}", b"1" if is_present else b""


def sent_entry(place: str, packet_id: int, record: SentRecord | None) -> Entry:
    """Return the entry of a sent message of QoS 2; None removes it."""
    name = f"{SENT}/{packet_id}/{place}"
    return name, b"" if record is None else msgspec.json.encode(record)
