"""Handlers of requests about topics of MQTT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from penstock_core.api import topics
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.operations import PURGE, READ, Pair
from penstock_core.api.requests import Request
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.topic_templates import TOPIC, may_meet, selector_of, template_of
from penstock_core.vocabulary.topics import filter_fault, has_wildcards, topic_matches
from penstock_server.runtime.access.permits import rights_through
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import Handler
from penstock_server.runtime.reading.stretches import batches_at, batches_of
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.realm_view import StoreView
from penstock_server.runtime.subscriptions.topic_tree import Branch

SLICE: Final = 1_000
"""Topics that are looked up before others have their turn."""
EVERY: Final = "#"

Levels = tuple[str, ...]


async def describe_mqtt(by: Caller, asked: topics.DescribeMqtt) -> topics.MqttInfo:
    _check(asked.filter)
    service, view = by.realm.connections.mqtt, by.realm.view
    every = None if service is None else view.named(service.channel)
    own = [view.store(ChannelId(number)) for number in view.topics.since]
    own.sort(key=lambda each: "" if each is None else each.name)
    return topics.MqttInfo(
        channel=None if service is None else service.channel,
        retained=None if service is None else service.channel,
        channels=tuple(
            _topics_of(each, asked.filter)
            for each in (every, *own)
            if each is not None and by.allows(READ[0], each.name)
        ),
    )


def _topics_of(store: StoreView, wanted: str) -> topics.TopicsOfChannel:
    own = store.definition.topics
    templates = tuple(map(template_of, own))
    meets = not own or any(may_meet(wanted, each.filter) for each in templates)
    return topics.TopicsOfChannel(
        name=store.name, topics=own, selector=selector_of(wanted, templates) if meets else None
    )


def _check(wanted: str) -> None:
    """Raises ``InvalidArgument`` for what is no topic filter."""
    if fault := filter_fault(wanted):
        raise InvalidArgument(fault)


async def list_mqtt_sessions(by: Caller, asked: topics.ListMqttSessions) -> topics.SessionsPage:
    service = by.realm.connections.mqtt
    if service is None:
        return topics.SessionsPage(sessions=(), next=None)
    return service.sessions_after(asked.after, asked.limit)


async def end_mqtt_session(by: Caller, asked: topics.EndMqttSession) -> None:
    service = by.realm.connections.mqtt
    if service is None:
        raise NameDoesNotExist("the realm does not serve MQTT, so no session of it can be ended")
    await service.end_session(asked.client_id, asked.user)


# --- by level -----------------------------------------------------------------------------


async def list_topics(by: Caller, asked: topics.ListTopics) -> topics.TopicLevels:
    prefix = () if asked.prefix is None else tuple(asked.prefix.split("/"))
    behind = None if asked.after is None else tuple(asked.after.split("/"))
    store = _read_through(by, asked.channel)
    tree = by.realm.view.topic_tree(store)
    below = tree.below(asked.prefix)
    found: list[topics.TopicLevel] = []
    for word in sorted(below):
        level = (*prefix, word)
        if behind is not None and level < behind[: len(level)]:
            continue
        counts = _LevelCounts(level, asked.depth)
        names = filter(tree.__contains__, _names_at("/".join(level), below[word]))
        async for slice_ in _alive(by.realm, store.number, names):
            counts.add(slice_)
        told = counts.told()
        found += told if behind is None else [each for each in told if _levels_of(each) > behind]
        if len(found) > asked.limit:
            last = found[asked.limit - 1]
            return topics.TopicLevels(levels=tuple(found[: asked.limit]), next=last.topic)
    return topics.TopicLevels(levels=tuple(found), next=None)


class _LevelCounts:
    """How many topics there are at a level, and at those below that are told as well."""

    def __init__(self, level: Levels, depth: int) -> None:
        """``depth``: levels that are told, from this one on."""
        self._level, self._name = level, "/".join(level)
        self._end = len(level) + depth
        self._counts: dict[Levels, int] = {}
        self._own: dict[Levels, int] = {}

    def add(self, found: Sequence[tuple[str, int]]) -> None:
        """Count topics that have an event."""
        counts, first = self._counts, len(self._level)
        if found:
            counts[self._level] = counts.get(self._level, 0) + len(found)
        if self._end == first + 1:
            self._own.update((self._level, it) for name, it in found if name == self._name)
            return
        for name, event_id in found:
            levels = tuple(name.split("/"))
            for end in range(first + 1, min(len(levels) + 1, self._end)):
                counts[levels[:end]] = counts.get(levels[:end], 0) + 1
            if len(levels) < self._end:
                self._own[levels] = event_id

    def told(self) -> list[topics.TopicLevel]:
        return [
            topics.TopicLevel(
                topic="/".join(level),
                name=level[-1],
                retained=count,
                event_id=self._own.get(level),
                is_open=count > (level in self._own),
            )
            for level, count in sorted(self._counts.items())
        ]


def _levels_of(told: topics.TopicLevel) -> Levels:
    return tuple(told.topic.split("/"))


def _names_at(name: str, branch: Branch) -> Iterator[str]:
    """All that may be topics at a level and below, while others may become some."""
    left = [(name, branch)]
    while left:
        name, below = left.pop()
        yield name
        left += [(f"{name}/{word}", each) for word, each in list(below.items())]


async def _alive(
    realm: RunningRealm, channel: ChannelId, found: Iterator[str]
) -> AsyncIterator[list[tuple[str, int]]]:
    """The topics that have an event, with its id; others have their turn in between."""
    while slice_ := list(islice(found, SLICE)):
        newest_of = _keyed(realm, channel).newest_of
        ids = [(name, newest_of(name)) for name in slice_]
        yield [(name, event_id) for name, event_id in ids if event_id is not None]
        await asyncio.sleep(0)


def _read_through(by: Caller, channel: ChannelId) -> StoreView:
    """The store that is read through a channel: that of retained messages, whose messages may be of
    every channel with topics, through the channel of all topics; otherwise the channel itself.
    Raises ``AccessDenied``, ``InvalidArgument``, ``NameDoesNotExist``."""
    directory = by.realm.directory
    retained = directory.internal.retained
    if retained is None or channel != directory.find(directory.internal.mqtt_channel):
        return _keyed(by.realm, channel)
    _check_through(by, channel, READ)
    return _keyed(by.realm, retained)


def _keyed(realm: RunningRealm, channel: ChannelId) -> StoreView:
    """A channel that has the newest event of each topic. Raises ``InvalidArgument`` for another,
    ``NameDoesNotExist``."""
    store = realm.view.store(channel)
    if store is None:
        raise NameDoesNotExist("the channel was deleted meanwhile")
    if store.definition.keys != {TOPIC: 1}:
        raise InvalidArgument(
            f"{store.name!r} does not keep the newest event of each topic: that is a channel with "
            f"the publish key {TOPIC} of depth 1, as MQTT has it for what is retained"
        )
    return store


async def open_retained(by: Caller, asked: topics.OpenRetained) -> ChannelOpened:
    _check_through(by, asked.channel, READ)
    if (channel_id := by.realm.directory.internal.retained) is None:
        raise NameDoesNotExist("the realm has no retained messages: it has not served MQTT yet")
    return by.realm.shard.state.opened(channel_id)


async def forget_retained(by: Caller, asked: topics.ForgetRetained) -> int:
    _check(asked.filter)
    channel_id = by.realm.directory.internal.retained
    if channel_id is None:
        return 0
    _check_through(by, asked.channel, PURGE)
    wanted = topics.ReadRetained(asked.channel, asked.filter, 1)
    gone = 0
    for event_id in await _ids_of(by.realm, channel_id, wanted):
        gone += await by.realm.subscriptions.purge(channel_id, event_id, event_id, selector="")
    return gone


def _check_through(by: Caller, channel: ChannelId, pair: Pair) -> None:
    """Check the rights that retained messages need beside that on ``channel``, which has to be the
    channel of all topics: they may be of every channel with topics. Raises ``AccessDenied``,
    ``InvalidArgument``."""
    directory = by.realm.directory
    if channel != directory.find(directory.internal.mqtt_channel):
        raise InvalidArgument(
            f"retained messages are read through the channel of all topics, "
            f"{directory.internal.mqtt_channel!r}, and no other"
        )
    for operation, name in rights_through(directory, pair):
        by.realm.access.require(by.principal, operation, name)


# --- by filter ----------------------------------------------------------------------------


async def read_retained(by: Caller, asked: topics.ReadRetained) -> topics.RetainedEvents:
    _check(asked.filter)
    store = _read_through(by, asked.channel)
    if asked.filter == EVERY:
        pages = batches_of(by.realm, store.number, asked.first_id, page_max=asked.limit + 1)
    else:
        ids = await _ids_of(by.realm, store.number, asked)
        pages = batches_at(by.realm, store.number, ids, page_max=asked.limit + 1)
    events: list[Event] = []
    async for page in pages:
        events += filter(lambda each: _is_retained(asked.filter, each), _events_in(page))
        if len(events) > asked.limit:
            return topics.RetainedEvents(
                events=events[: asked.limit], next_id=events[asked.limit].event_id
            )
    return topics.RetainedEvents(events=events, next_id=None)


async def _ids_of(realm: RunningRealm, channel: ChannelId, asked: topics.ReadRetained) -> list[int]:
    """The events of the topics that a filter takes, which rise."""
    names = [asked.filter]
    if has_wildcards(asked.filter):
        tree = realm.view.topic_tree(_keyed(realm, channel))
        names = list(tree.find(asked.filter))
    ids: list[int] = []
    async for slice_ in _alive(realm, channel, iter(names)):
        ids += [event_id for _, event_id in slice_ if event_id >= asked.first_id]
    return sorted(ids)


def _events_in(page: Iterable[pa.RecordBatch]) -> Iterator[Event]:
    for batch in page:
        yield from EventBatch(batch)


def _is_retained(wanted: str, event: Event) -> bool:
    """Whether it is no removal, and on a topic that the filter takes."""
    topic = event.properties.get(TOPIC)
    return bool(event.data) and isinstance(topic, str) and topic_matches(wanted, topic)


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = {
    topics.DescribeMqtt: describe_mqtt,
    topics.ListTopics: list_topics,
    topics.ReadRetained: read_retained,
    topics.OpenRetained: open_retained,
    topics.ForgetRetained: forget_retained,
    topics.ListMqttSessions: list_mqtt_sessions,
    topics.EndMqttSession: end_mqtt_session,
}
