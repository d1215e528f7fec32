"""What is kept of sessions on disk: the newest entry of each, in a channel of its own (SEM M6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from penstock.columns.events.body import body_of_columns
from penstock.columns.events.event import Event
from penstock.core.access.rights import Principal
from penstock.core.vocabulary.identities import ChannelId
from penstock.frontends.mqtt.messages import REMOVAL_MS
from penstock.frontends.mqtt.newest_events import KeyedChannel
from penstock.runtime.reading.stretches import pages_of
from penstock.runtime.store.bodies import Body, body_from
from penstock.runtime.writer.requests import Reply

ENTRY: Final = "entry"
"""The property that names what an event is about; of each name the newest event counts."""
SESSION, RECEIVED, SENT = "session", "received", "sent"
"""Kinds of entries: a session, a message of QoS 2 that has come, one that was sent."""


class StoredFilter(Struct, frozen=True, omit_defaults=True):
    """A subscription of a session."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    number: int | None = None
    """Its subscription identifier."""
    durable: str = ""
    """The durable that has its messages; empty with QoS 0, which waits for nobody."""
    owes_retained: bool = False
    """Whether the client may not have all retained messages that it subscribed for."""


class StoredWill(Struct, frozen=True, omit_defaults=True):
    """What is published when the client does not come back."""

    packet: bytes
    """The PUBLISH, in the form of MQTT 5."""
    delay_s: int = 0


class SessionRecord(Struct, frozen=True, omit_defaults=True):
    """A session as it is stored."""

    client_id: str
    principal: Principal
    """Whose it is, and who publishes its will."""
    expiry_s: int = 0
    """Seconds that it outlives its connection; :data:`NEVER`: for ever."""
    ended_us: int = 0
    """When its connection ended, in microseconds since 1970; 0: it has one."""
    will: StoredWill | None = None
    filters: tuple[StoredFilter, ...] = ()


class SentRecord(Struct, frozen=True, omit_defaults=True):
    """A message of QoS 2 on its way to a client: its id is kept until the client is done with it,
    so that what is sent again after a kill is the same message to it (4.3.3)."""

    source: str
    """The topic filter by which it goes to the client."""
    event_id: int
    from_retained: bool = False
    """Whether the event is one of the channel of retained messages."""
    is_released: bool = False
    """Whether the client has it: only PUBREL and PUBCOMP are left."""
    channel: str = ""
    """The channel with topics that the event is in; empty: the one of all topics."""


NEVER: Final = 0xFFFF_FFFF
"""The session expiry of a session that never expires, in seconds."""

Entry = tuple[str, bytes]
"""The name of an entry and what it says; nothing: it is removed."""


class StoredEntries(Struct, frozen=True):
    """All that is stored."""

    sessions: list[SessionRecord]
    received: dict[str, list[int]]
    """The ids of messages of QoS 2 that have come and are not released, by client."""
    sent: dict[str, dict[int, SentRecord]]
    """Messages of QoS 2 that were sent, by client and id."""


class SessionStore(KeyedChannel):
    """The channel ``<channel>-sessions``."""

    suffix = "sessions"
    key = ENTRY
    what = "sessions of MQTT"
    why = "sessions of MQTT are kept there"

    def _type(self, beside: str) -> str:
        return "persistent"

    # --- writing -------------------------------------------------------------------------

    def part(self, entries: Sequence[Entry]) -> tuple[ChannelId, list[Body]]:
        """Entries as what is published in one step with something else."""
        newest = dict(entries)
        body = body_of_columns(
            list(newest.values()),
            None,
            [{ENTRY: name} for name in newest],
            ttls=[None if each else REMOVAL_MS for each in newest.values()],
        )
        return self.channel(), [body_from(body)]

    def submit(self, part: tuple[ChannelId, list[Body]], reply: Reply) -> None:
        """Store entries; ``reply`` is called once they are on disk."""
        try:
            self._realm.publish(*part, "", 0, reply)
        except Exception as error:  # noqa: BLE001  who waits for them is answered, whatever it is
            reply(None, error)

    # --- reading -------------------------------------------------------------------------

    async def load(self) -> StoredEntries:
        """What is stored, when the front end starts."""
        found = StoredEntries([], {}, {})
        channel = await self.open_channel()
        async for page in pages_of(self._realm, channel, self.name):
            for event in page:
                if event.data:
                    _take_up(event, found)
        return found


def _take_up(event: Event, found: StoredEntries) -> None:
    kind, _, rest = str(event.properties.get(ENTRY, "")).partition("/")
    if kind == SESSION:
        found.sessions.append(msgspec.json.decode(event.data, type=SessionRecord))
        return
    number, _, client_id = rest.partition("/")
    if kind == RECEIVED:
        found.received.setdefault(client_id, []).append(int(number))
    elif kind == SENT:
        record = msgspec.json.decode(event.data, type=SentRecord)
        found.sent.setdefault(client_id, {})[int(number)] = record


def session_entry(record: SessionRecord) -> Entry:
    return f"{SESSION}/{record.client_id}", msgspec.json.encode(record)


def session_removed(client_id: str) -> Entry:
    return f"{SESSION}/{client_id}", b""


def received_entry(client_id: str, packet_id: int, *, is_there: bool) -> Entry:
    """A message of QoS 2 has come, or was released."""
    return f"{RECEIVED}/{packet_id}/{client_id}", b"1" if is_there else b""


def sent_entry(client_id: str, packet_id: int, record: SentRecord | None) -> Entry:
    """A message of QoS 2 is sent; None: its client is done with it."""
    name = f"{SENT}/{packet_id}/{client_id}"
    return name, b"" if record is None else msgspec.json.encode(record)
