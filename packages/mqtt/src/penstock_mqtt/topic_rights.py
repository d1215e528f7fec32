"""Who may publish and subscribe to which topics: by the rights on their channels (SEM M4), or by
those on the topics themselves (SEM M15)."""

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
    """What one client may, as its principal; answers about channels are kept until rights
    change."""

    def __init__(
        self, realm: RunningRealm, topics: TopicChannels, principal: Principal, client_id: str
    ) -> None:
        self._realm = realm
        self._topics = topics
        self._principal = principal
        self._client_id = client_id
        self._granted: list[tuple[str, frozenset[str]]] = []
        """The topic filters on which something is granted to it, with the rights."""
        self._publishable: TopicIndex[str] = TopicIndex()
        self._known: dict[tuple[str, Asked], AccessDenied | None] = {}
        self._version = -1

    def check_publish(self, topic: str, asked: Asked) -> None:
        """Raise ``AccessDenied`` unless it may publish to a topic, or to its channel."""
        if self._realm.access.is_open:
            return
        owner = self._topics.owner_of(topic)
        error = self._missing(self._name(owner and owner[0]), asked)
        if error is not None and not self._publishable.find(topic):
            raise error

    def check_subscribe(self, text: str, *, makes_durable: bool) -> None:
        """Raise ``AccessDenied`` unless it may have messages of a channel whose topics the filter
        takes, or of all these topics."""
        if self._realm.access.is_open:
            return
        asked = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        first: AccessDenied | None = None
        for each in (None, *self._topics.met_by(text)):
            errors = (self._missing(self._name(each), one) for one in asked)
            error = next((each for each in errors if each is not None), None)
            if error is None:
                return
            first = first or error
        if first is not None and not self._is_granted(text, makes_durable=makes_durable):
            raise first

    def may_anything(self) -> bool:
        """Whether it has a right to any topic at all."""
        if self._realm.access.is_open:
            return True
        for channel in (None, *self._topics.every.values()):
            name = self._name(channel)
            if any(self._missing(name, asked) is None for asked in (Subscribe, PublishEvents)):
                return True
        return bool(self._granted)

    def may_have(
        self, text: str, channel: TopicChannel | None, *, makes_durable: bool = False
    ) -> bool:
        """Whether it may have messages of a channel by a filter; None: that of all topics."""
        if self._realm.access.is_open:
            return True
        name = self._name(channel)
        asked = (Subscribe, CreateDurable) if makes_durable else (Subscribe,)
        if all(self._missing(name, one) is None for one in asked):
            return True
        return self._is_granted(text, makes_durable=makes_durable)

    def _is_granted(self, text: str, *, makes_durable: bool) -> bool:
        wanted = wanted_of(text)
        needed = {"subscribe", "durable"} if makes_durable else {"subscribe"}
        return any(needed <= rights and covers(wide, wanted) for wide, rights in self._granted)

    def _name(self, channel: TopicChannel | None) -> str:
        return self._topics.all_topics if channel is None else channel.name

    def _missing(self, channel: str, asked: Asked) -> AccessDenied | None:
        access = self._realm.access
        if self._version != access.version:
            self._version = access.version
            self._known.clear()
            self._publishable = TopicIndex()
            self._granted = access.accounts.acl.on_topics(self._principal, self._client_id)
            for wide in {wide for wide, rights in self._granted if "publish" in rights}:
                self._publishable.add(wide, wide)
        key = channel, asked
        if key not in self._known:
            self._known[key] = None
            try:
                check_on(Caller(self._realm, self._principal), "channel", channel, asked=asked)
            except AccessDenied as error:
                self._known[key] = error
        return self._known[key]
