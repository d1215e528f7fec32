"""What is kept of sessions on disk: the newest entry of each, in a channel of its own (SEM M6)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from penstock.columns.events.body import body_of_columns
from penstock.columns.events.event import Event
from penstock.columns.selectors import Selector
from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import (
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
    PenstockError,
)
from penstock.core.vocabulary.identities import ChannelId
from penstock.core.vocabulary.messages import Definition, Storage
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.start_positions import FromId
from penstock.frontends.mqtt.messages import REMOVAL_MS
from penstock.runtime.reading.collecting import Collected, collect, count_that_fits
from penstock.runtime.realm import RunningRealm
from penstock.runtime.store.bodies import Body, body_from
from penstock.runtime.writer.requests import Reply

ENTRY: Final = "entry"
"""The property that names what an event is about; of each name the newest event counts."""
PAGE: Final = 1_000
"""Most events that are read at once."""
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


class SessionStore:
    """The channel ``<channel>-sessions``."""

    def __init__(self, realm: RunningRealm, beside: str) -> None:
        """``beside``: the channel of all topics."""
        self._realm = realm
        self._beside = beside
        self._name = f"{beside}-sessions"

    async def open_channel(self) -> ChannelId:
        """The channel, made when it is missing. Raises ``InvalidArgument`` if it is not fit."""
        with contextlib.suppress(NameDoesNotExist):
            return self.channel()
        with contextlib.suppress(NameAlreadyBound):  # somebody else was faster
            beside = self._realm.definition_of(self._beside) or Definition()
            definition = Definition(
                type="persistent",
                keys={ENTRY: 1},
                event_ttl=True,
                retain_consumed=True,
                storage=Storage(sync=beside.storage.sync),
            )
            await self._realm.create_channel(destination_name(self._name), definition)
        return self.channel()

    def channel(self) -> ChannelId:
        """Raises ``NameDoesNotExist`` if it is missing."""
        store = self._realm.view.named(self._name)
        if store is None:
            raise NameDoesNotExist(f"there is no channel {self._name!r} for sessions of MQTT")
        definition = self._realm.definition_of(self._name)
        keys = {} if definition is None else definition.keys
        if store.kind != "channel" or keys != {ENTRY: 1}:
            text = "has to be a channel with the publish key entry of depth 1, and nothing else"
            raise InvalidArgument(f"{self._name!r} {text}: sessions of MQTT are kept there")
        return store.number

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

    def submit(self, entries: Sequence[Entry], reply: Reply) -> None:
        """Store entries; ``reply`` is called once they are on disk."""
        try:
            channel, bodies = self.part(entries)
            self._realm.publish(channel, bodies, "", 0, reply)
        except PenstockError as error:
            reply(None, error)

    # --- reading -------------------------------------------------------------------------

    async def load(self) -> StoredEntries:
        """What is stored, when the front end starts."""
        found = StoredEntries([], {}, {})
        channel = await self.open_channel()
        async for page in pages_of(self._realm, channel, self._name):
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


async def pages_of(
    realm: RunningRealm, channel: ChannelId, name: str, selector: Selector | None = None
) -> AsyncIterator[list[Event]]:
    """The events of a channel that are there now, a page at a time."""
    last_id = realm.view.required(name).next_id - 1
    async for page in _pages_between(realm, channel, 0, last_id, selector):
        yield page


async def events_at(
    realm: RunningRealm, channel: ChannelId, event_ids: Sequence[int]
) -> AsyncIterator[list[Event]]:
    """The events with these ids, as far as they are there, each for itself."""
    for event_id in event_ids:
        async for page in _pages_between(realm, channel, event_id, event_id, None):
            yield page


async def _pages_between(
    realm: RunningRealm,
    channel: ChannelId,
    first_id: int,
    last_id: int,
    selector: Selector | None,
) -> AsyncIterator[list[Event]]:
    next_id: int | None = first_id
    while next_id is not None:
        size = count_that_fits(realm.view.store(channel), min(PAGE, last_id - next_id + 1))
        outlet = Collected("mqtt", selector, size)
        open_ = partial(
            realm.subscriptions.subscribe,
            *(channel, FromId(next_id), outlet),
            credit=size,
            browse=True,
            last_id=last_id,
        )
        next_id = await collect(realm, channel, outlet, open_)
        yield outlet.events()
