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
from penstock_mqtt.wire.reading import wanted_of
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import check_on

if TYPE_CHECKING:
    from penstock_mqtt.topic_channels import TopicChannel, TopicChannels
    from penstock_server.runtime.realm import RunningRealm

Asked = type[Request[Any]]


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
        self._known: dict[tuple[str, Asked], AccessDenied | None] = {}
        self._version = -1

    def check_publish(self, topic: str, asked: Asked) -> None:
        """Raise ``AccessDenied`` unless the client may publish to a topic or to its channel."""
        if self._realm.access.is_open:
            return
        owner = self._topics.owner_of(topic)
        error = self._missing(self._name(owner and owner[0]), asked)
        if error is not None and not self._publishable.find(topic):
            raise error

    def check_subscribe(self, text: str, *, makes_durable: bool) -> None:
        """Raise ``AccessDenied`` unless the client may read at least one channel with matching
        topics, or the filter is granted to it."""
        if self._realm.access.is_open:
            return
        requests = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        first: AccessDenied | None = None
        for channel in (None, *self._topics.met_by(text)):
            errors = (self._missing(self._name(channel), request) for request in requests)
            error = next((error for error in errors if error is not None), None)
            if error is None:
                return
            first = first or error
        if first is not None and not self._is_granted(text, makes_durable=makes_durable):
            raise first

    def may_anything(self) -> bool:
        """Return whether the client has a right to any topic at all."""
        if self._realm.access.is_open:
            return True
        for channel in (None, *self._topics.every.values()):
            name = self._name(channel)
            if any(self._missing(name, request) is None for request in (Subscribe, PublishEvents)):
                return True
        return bool(self._granted)

    def may_have(
        self, text: str, channel: TopicChannel | None, *, makes_durable: bool = False
    ) -> bool:
        """Return whether the client may read messages of a channel that a filter matches; None is
        the channel of all topics."""
        if self._realm.access.is_open:
            return True
        name = self._name(channel)
        requests = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        if all(self._missing(name, request) is None for request in requests):
            return True
        return self._is_granted(text, makes_durable=makes_durable)

    def _is_granted(self, text: str, *, makes_durable: bool) -> bool:
        wanted = wanted_of(text)
        needed = {"subscribe", "durable"} if makes_durable else {"subscribe"}
        return any(needed <= rights and covers(wide, wanted) for wide, rights in self._granted)

    def _name(self, channel: TopicChannel | None) -> str:
        return self._topics.all_topics if channel is None else channel.name

    def _missing(self, channel: str, request: Asked) -> AccessDenied | None:
        access = self._realm.access
        if self._version != access.version:
            self._version = access.version
            self._known.clear()
            self._publishable = TopicIndex()
            self._granted = access.accounts.acl.on_topics(self._principal, self._client_id)
            for wide in {wide for wide, rights in self._granted if "publish" in rights}:
                self._publishable.add(wide, wide)
        key = channel, request
        if key not in self._known:
            self._known[key] = None
            try:
                check_on(Caller(self._realm, self._principal), "channel", channel, asked=request)
            except AccessDenied as error:
                self._known[key] = error
        return self._known[key]
