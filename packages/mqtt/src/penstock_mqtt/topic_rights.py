"""Decides which topics a client may publish and subscribe to, by the rights on their channels (SEM
M4) or on the topics themselves (SEM M15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_core.access.rights import Principal
from penstock_core.api.durables import CreateDurable
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Subscribe
from penstock_core.vocabulary.errors import AccessDenied
from penstock_core.vocabulary.topic_templates import covers
from penstock_mqtt.topic_index import TopicIndex
from penstock_mqtt.wire.reading import filter_of
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import check_on

if TYPE_CHECKING:
    from penstock_mqtt.topic_channels import TopicChannel, TopicChannels
    from penstock_server.runtime.realm import RunningRealm

RequestType = type[Request[Any]]


class ClientRights:
    """The rights of one client with its principal. Results for channels are cached until rights
    change."""

    def __init__(
        self, realm: RunningRealm, topics: TopicChannels, principal: Principal, client_id: str
    ) -> None:
        self._realm = realm
        self._topics = topics
        self._principal = principal
        self._client_id = client_id
        self._granted: list[tuple[str, frozenset[str]]] = []
        """Topic filters with the rights that are granted on them."""
        self._publishable: TopicIndex[str] = TopicIndex()
        """Topic filters with the granted right to publish."""
        self._cached: dict[tuple[str, RequestType], AccessDenied | None] = {}
        """The error of each request on a channel, None if the request is allowed."""
        self._version = -1
        """Version of the rights that the cached results were found with."""

    def check_publish(self, topic: str, request_type: RequestType) -> None:
        """Raise ``AccessDenied`` unless the client may publish to a topic or to its channel."""
        if self._realm.access.is_open:
            return
        owner = self._topics.owner_of(topic)
        error = self._find_error(self._channel_name(owner and owner[0]), request_type)
        if error is not None and not self._publishable.find(topic):
            raise error

    def check_subscribe(self, text: str, *, makes_durable: bool) -> None:
        """Raise ``AccessDenied`` unless the client may read at least one channel with matching
        topics, or the filter is granted to it."""
        if self._realm.access.is_open:
            return
        requests = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        first: AccessDenied | None = None
        for channel in (None, *self._topics.matching_channels(text)):
            errors = (
                self._find_error(self._channel_name(channel), request) for request in requests
            )
            error = next((error for error in errors if error is not None), None)
            if error is None:
                return
            first = first or error
        if first is not None and not self._is_granted(text, makes_durable=makes_durable):
            raise first

    def has_any_right(self) -> bool:
        """Return whether the client has a right to any topic at all."""
        if self._realm.access.is_open:
            return True
        for channel in (None, *self._topics.all_channels.values()):
            name = self._channel_name(channel)
            if any(
                self._find_error(name, request) is None for request in (Subscribe, PublishEvents)
            ):
                return True
        return bool(self._granted)

    def may_read(
        self, text: str, channel: TopicChannel | None, *, makes_durable: bool = False
    ) -> bool:
        """Return whether the client may read messages of a channel that a filter matches; None is
        the channel of all topics."""
        if self._realm.access.is_open:
            return True
        name = self._channel_name(channel)
        requests = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        if all(self._find_error(name, request) is None for request in requests):
            return True
        return self._is_granted(text, makes_durable=makes_durable)

    def _is_granted(self, text: str, *, makes_durable: bool) -> bool:
        filter_text = filter_of(text)
        needed = {"subscribe", "durable"} if makes_durable else {"subscribe"}
        return any(
            needed <= rights and covers(granted, filter_text) for granted, rights in self._granted
        )

    def _channel_name(self, channel: TopicChannel | None) -> str:
        return self._topics.all_topics if channel is None else channel.name

    def _find_error(self, channel: str, request: RequestType) -> AccessDenied | None:
        """Return the error of a request on a channel, or None if the client has the right."""
        access = self._realm.access
        if self._version != access.version:
            self._version = access.version
            self._cached.clear()
            self._publishable = TopicIndex()
            self._granted = access.accounts.acl.on_topics(self._principal, self._client_id)
            for granted in {granted for granted, rights in self._granted if "publish" in rights}:
                self._publishable.add(granted, granted)
        key = channel, request
        if key not in self._cached:
            self._cached[key] = None
            try:
                check_on(
                    Caller(self._realm, self._principal), "channel", channel, request_type=request
                )
            except AccessDenied as error:
                self._cached[key] = error
        return self._cached[key]
