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
"""Topics that are looked up before other tasks run."""
EVERY: Final = "#"

Levels = tuple[str, ...]


async def describe_mqtt(caller: Caller, request: topics.DescribeMqtt) -> topics.MqttInfo:
    _check(request.filter)
    service, view = caller.realm.connections.mqtt, caller.realm.view
    all_topics = None if service is None else view.named(service.channel)
    channels = [view.store(ChannelId(number)) for number in view.topics.since]
    channels.sort(key=lambda store: "" if store is None else store.name)
    return topics.MqttInfo(
        channel=None if service is None else service.channel,
        retained=None if service is None else service.channel,
        channels=tuple(
            _topics_of(store, request.filter)
            for store in (all_topics, *channels)
            if store is not None and caller.allows(READ[0], store.name)
        ),
    )


def _topics_of(store: StoreView, filter_text: str) -> topics.TopicsOfChannel:
    """Return a channel with topics, and the selector for its events that match a topic filter."""
    texts = store.definition.topics
    templates = tuple(map(template_of, texts))
    is_matched = not texts or any(may_meet(filter_text, template.filter) for template in templates)
    return topics.TopicsOfChannel(
        name=store.name,
        topics=texts,
        selector=selector_of(filter_text, templates) if is_matched else None,
    )


def _check(filter_text: str) -> None:
    """Raise ``InvalidArgument`` if the text is not a topic filter."""
    if fault := filter_fault(filter_text):
        raise InvalidArgument(fault)


async def list_mqtt_sessions(
    caller: Caller, request: topics.ListMqttSessions
) -> topics.SessionsPage:
    service = caller.realm.connections.mqtt
    if service is None:
        return topics.SessionsPage(sessions=(), next=None)
    return service.sessions_after(request.after, request.limit)


async def end_mqtt_session(caller: Caller, request: topics.EndMqttSession) -> None:
    service = caller.realm.connections.mqtt
    if service is None:
        raise NameDoesNotExist("the realm does not serve MQTT, so no session of it can be ended")
    await service.end_session(request.client_id, request.user)


# --- by level -----------------------------------------------------------------------------


async def list_topics(caller: Caller, request: topics.ListTopics) -> topics.TopicLevels:
    prefix = () if request.prefix is None else tuple(request.prefix.split("/"))
    after = None if request.after is None else tuple(request.after.split("/"))
    store = _read_through(caller, request.channel)
    tree = caller.realm.view.topic_tree(store)
    below = tree.below(request.prefix)
    levels: list[topics.TopicLevel] = []
    for word in sorted(below):
        level = (*prefix, word)
        # Such a level and all levels below it were on an earlier page.
        if after is not None and level < after[: len(level)]:
            continue
        counts = _LevelCounts(level, request.depth)
        # A level of the tree need not be a topic itself.
        names = filter(tree.__contains__, _names_at("/".join(level), below[word]))
        async for names_slice in _with_events(caller.realm, store.number, names):
            counts.add(names_slice)
        rows = counts.rows()
        levels += rows if after is None else [row for row in rows if _levels_of(row) > after]
        if len(levels) > request.limit:
            last = levels[request.limit - 1]
            return topics.TopicLevels(levels=tuple(levels[: request.limit]), next=last.topic)
    return topics.TopicLevels(levels=tuple(levels), next=None)


class _LevelCounts:
    """Counts the topics of a level and of the listed levels below it."""

    def __init__(self, level: Levels, depth: int) -> None:
        """``depth`` is the number of levels to list, including this one."""
        self._level, self._name = level, "/".join(level)
        self._end = len(level) + depth
        self._counts: dict[Levels, int] = {}
        """Number of topics at and below each level."""
        self._own: dict[Levels, int] = {}
        """Id of the event of each level that is a topic itself."""

    def add(self, topics_found: Sequence[tuple[str, int]]) -> None:
        """Count topics that have an event. ``topics_found`` are topics of this level and below it,
        each with the id of its event."""
        counts, first = self._counts, len(self._level)
        if topics_found:
            counts[self._level] = counts.get(self._level, 0) + len(topics_found)
        if self._end == first + 1:
            self._own.update(
                (self._level, event_id) for name, event_id in topics_found if name == self._name
            )
            return
        for name, event_id in topics_found:
            levels = tuple(name.split("/"))
            for end in range(first + 1, min(len(levels) + 1, self._end)):
                counts[levels[:end]] = counts.get(levels[:end], 0) + 1
            if len(levels) < self._end:
                self._own[levels] = event_id

    def rows(self) -> list[topics.TopicLevel]:
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


def _levels_of(row: topics.TopicLevel) -> Levels:
    return tuple(row.topic.split("/"))


def _names_at(name: str, branch: Branch) -> Iterator[str]:
    """Yield the names of a level and of all levels below it. Topics may be added between two
    steps."""
    branches = [(name, branch)]
    while branches:
        name, below = branches.pop()
        yield name
        branches += [(f"{name}/{word}", inner) for word, inner in list(below.items())]


async def _with_events(
    realm: RunningRealm, channel: ChannelId, names: Iterator[str]
) -> AsyncIterator[list[tuple[str, int]]]:
    """Yield the topics that have an event, each with the event's id. Other tasks run after each
    `SLICE` names."""
    while names_slice := list(islice(names, SLICE)):
        # Looked up again for each slice, because the channel may have been deleted since the last
        # slice.
        newest_of = _keyed(realm, channel).newest_of
        ids = [(name, newest_of(name)) for name in names_slice]
        yield [(name, event_id) for name, event_id in ids if event_id is not None]
        await asyncio.sleep(0)


def _read_through(caller: Caller, channel: ChannelId) -> StoreView:
    """Return the store to read through a channel: for the channel of all topics the store of
    retained messages, which may contain messages of every channel with topics; otherwise the
    channel itself. Raises ``AccessDenied``, ``InvalidArgument``, ``NameDoesNotExist``."""
    directory = caller.realm.directory
    retained = directory.internal.retained_id
    if retained is None or channel != directory.find(directory.internal.mqtt_channel):
        return _keyed(caller.realm, channel)
    _check_rights_through(caller, channel, READ)
    return _keyed(caller.realm, retained)


def _keyed(realm: RunningRealm, channel: ChannelId) -> StoreView:
    """Return a channel that keeps the newest event of each topic. Raises ``InvalidArgument`` for
    other channels, ``NameDoesNotExist``."""
    store = realm.view.store(channel)
    if store is None:
        raise NameDoesNotExist("the channel was deleted during the request")
    if store.definition.keys != {TOPIC: 1}:
        raise InvalidArgument(
            f"{store.name!r} does not keep the newest event of each topic; use a channel with the "
            f"publish key {TOPIC} of depth 1, such as the channel of retained messages"
        )
    return store


async def open_retained(caller: Caller, request: topics.OpenRetained) -> ChannelOpened:
    _check_rights_through(caller, request.channel, READ)
    if (channel_id := caller.realm.directory.internal.retained_id) is None:
        raise NameDoesNotExist("the realm has no retained messages: it has not served MQTT yet")
    return caller.realm.shard.state.opened(channel_id)


async def forget_retained(caller: Caller, request: topics.ForgetRetained) -> int:
    _check(request.filter)
    channel_id = caller.realm.directory.internal.retained_id
    if channel_id is None:
        return 0
    _check_rights_through(caller, request.channel, PURGE)
    read_request = topics.ReadRetained(request.channel, request.filter, 1)
    count = 0
    for event_id in await _ids_of(caller.realm, channel_id, read_request):
        count += await caller.realm.subscriptions.purge(channel_id, event_id, event_id, selector="")
    return count


def _check_rights_through(caller: Caller, channel: ChannelId, pair: Pair) -> None:
    """Check the additional rights for retained messages, which may belong to every channel with
    topics. ``channel`` must be the channel of all topics; ``pair`` has the operation that the user
    needs a right to. Raises ``AccessDenied``, ``InvalidArgument``."""
    directory = caller.realm.directory
    if channel != directory.find(directory.internal.mqtt_channel):
        raise InvalidArgument(
            f"retained messages are read through the channel of all topics, "
            f"{directory.internal.mqtt_channel!r}, and no other"
        )
    for operation, name in rights_through(directory, pair):
        caller.realm.access.require(caller.principal, operation, name)


# --- by filter ----------------------------------------------------------------------------


async def read_retained(caller: Caller, request: topics.ReadRetained) -> topics.RetainedEvents:
    _check(request.filter)
    store = _read_through(caller, request.channel)
    if request.filter == EVERY:
        pages = batches_of(caller.realm, store.number, request.first_id, page_max=request.limit + 1)
    else:
        ids = await _ids_of(caller.realm, store.number, request)
        pages = batches_at(caller.realm, store.number, ids, page_max=request.limit + 1)
    events: list[Event] = []
    async for page in pages:
        events += filter(lambda event: _is_retained(request.filter, event), _events_in(page))
        if len(events) > request.limit:
            return topics.RetainedEvents(
                events=events[: request.limit], next_id=events[request.limit].event_id
            )
    return topics.RetainedEvents(events=events, next_id=None)


async def _ids_of(
    realm: RunningRealm, channel: ChannelId, request: topics.ReadRetained
) -> list[int]:
    """Return the ascending ids of the newest events of topics that a filter matches."""
    names = [request.filter]
    if has_wildcards(request.filter):
        tree = realm.view.topic_tree(_keyed(realm, channel))
        names = list(tree.find(request.filter))
    ids: list[int] = []
    async for names_slice in _with_events(realm, channel, iter(names)):
        ids += [event_id for _, event_id in names_slice if event_id >= request.first_id]
    return sorted(ids)


def _events_in(page: Iterable[pa.RecordBatch]) -> Iterator[Event]:
    for batch in page:
        yield from EventBatch(batch)


def _is_retained(filter_text: str, event: Event) -> bool:
    """Return whether an event is not a removal and its topic matches the filter."""
    topic = event.properties.get(TOPIC)
    return bool(event.data) and isinstance(topic, str) and topic_matches(filter_text, topic)


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = {
    topics.DescribeMqtt: describe_mqtt,
    topics.ListTopics: list_topics,
    topics.ReadRetained: read_retained,
    topics.OpenRetained: open_retained,
    topics.ForgetRetained: forget_retained,
    topics.ListMqttSessions: list_mqtt_sessions,
    topics.EndMqttSession: end_mqtt_session,
}
