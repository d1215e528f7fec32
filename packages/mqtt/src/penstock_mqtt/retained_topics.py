"""Bounds the topics that have a retained message: their number, and their bytes of memory.

The realm keeps every such topic in memory twice, as a value of the publish key ``topic`` and in a
tree of levels, which subscriptions with wildcards search. The bytes counted here are an estimate of
both. Where the realm knows its users, each of them has half of what the others leave, so that one
client cannot keep the others from retaining messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock_core.access.rights import ANONYMOUS
from penstock_core.vocabulary.shares import share_left
from penstock_mqtt.messages import Received
from penstock_mqtt.wire.reasons import MqttViolation, Reason
from penstock_server.runtime.subscriptions.realm_view import StoreView

TOPIC_BYTES: Final = 160
"""Memory of a topic besides its text, in bytes."""
LEVEL_BYTES: Final = 300
"""Memory in bytes of one level of a topic in the tree: its text, and the dictionary of the levels
below it."""


_MEASURED: Final = "retained topics"
"""Key of the measured topics among the values that the realm derives from the publish keys."""


class RetainedLimits(NamedTuple):
    """Limits of the topics that have a retained message. A limit of 0 means no limit."""

    topics_max: int
    bytes_max: int


class TopicChanges(NamedTuple):
    """The topics that messages add and remove."""

    added: frozenset[str]
    removed: frozenset[str]


class _Amount(NamedTuple):
    """A number of topics and their bytes of memory."""

    topics: int = 0
    bytes: int = 0

    def with_topics(self, topics: Iterable[str], sign: int = 1) -> _Amount:
        """Return the amount after topics were added; a ``sign`` of -1 removes them."""
        sizes = [bytes_of(topic) for topic in topics]
        return _Amount(self.topics + sign * len(sizes), self.bytes + sign * sum(sizes))

    def limited_to(self, maximum: _Amount) -> _Amount:
        """Return the amount limited to between 0 and ``maximum``."""
        return _Amount(
            max(0, min(self.topics, maximum.topics)), max(0, min(self.bytes, maximum.bytes))
        )


def bytes_of(topic: str) -> int:
    """Estimate the memory that a topic takes, in bytes."""
    return sys.getsizeof(topic) + TOPIC_BYTES + LEVEL_BYTES * (topic.count("/") + 1)


class RetainedTopics:
    """The topics that have a retained message, of all users and of each."""

    def __init__(self, limits: RetainedLimits, knows_users: Callable[[], bool]) -> None:
        """``knows_users`` returns whether clients have to sign in."""
        self._limits = limits
        self._knows_users = knows_users
        self._shares: dict[str, _Amount] = {}
        """Topics that each user has added since the start of the realm, and their bytes."""

    def changes(self, store: StoreView, received: Sequence[Received]) -> TopicChanges:
        """Return the topics that messages, which are to be retained, add to the store and remove
        from it."""
        has_payload = {message.topic: bool(message.packet.payload) for message in received}
        stored = {topic for topic in has_payload if store.newest_of(topic) is not None}
        added = {
            topic for topic, has_data in has_payload.items() if has_data and topic not in stored
        }
        removed = {topic for topic in stored if not has_payload[topic]}
        return TopicChanges(frozenset(added), frozenset(removed))

    def check(self, publisher: str, store: StoreView, changes: TopicChanges) -> None:
        """Raise :class:`MqttViolation` if the added topics would exceed a limit. Replacing or
        removing a retained message is always allowed."""
        if not changes.added:
            return
        total = self._total(store)
        added = _Amount().with_topics(changes.added)
        # Topics that other users have removed are still counted for the user that added them.
        share = self._share_of(publisher).limited_to(total)
        self._check_limit(
            "topics",
            "limits.mqtt_retained_messages_max",
            limit=self._limits.topics_max,
            used=total.topics,
            share=share.topics,
            added=added.topics,
        )
        self._check_limit(
            "bytes of topics",
            "limits.mqtt_retained_bytes_max",
            limit=self._limits.bytes_max,
            used=total.bytes,
            share=share.bytes,
            added=added.bytes,
        )

    def _check_limit(
        self, unit: str, setting: str, *, limit: int, used: int, share: int, added: int
    ) -> None:
        """Raise :class:`MqttViolation` if ``added`` exceeds the limit of the realm or of the user.
        ``used`` is the amount of all users, ``share`` that of the publishing user."""
        if not limit:
            return
        if used + added > limit:
            raise MqttViolation(
                Reason.QUOTA_EXCEEDED,
                f"{used:,} {unit} have a retained message; allowed are {limit:,} ({setting}): "
                f"remove some, or publish without retain",
            )
        if self._knows_users() and added > share_left(limit, used, share):
            raise MqttViolation(
                Reason.QUOTA_EXCEEDED,
                f"{share:,} {unit} have a retained message of this user, who may have half of what "
                f"other users leave of {limit:,} ({setting}): remove some, or publish without "
                f"retain",
            )

    def stored(self, publisher: str, changes: TopicChanges) -> None:
        """Update the publisher's share after its messages were stored."""
        if not (self._knows_users() and (changes.added or changes.removed)):
            return
        user = _user_of(publisher)
        share = self._shares.get(user, _Amount()).with_topics(changes.added)
        # A user may remove topics that another user has added: its share never falls below 0.
        share = share.with_topics(changes.removed, sign=-1).limited_to(share)
        if share.topics:
            self._shares[user] = share
        else:
            self._shares.pop(user, None)

    def _share_of(self, publisher: str) -> _Amount:
        return self._shares.get(_user_of(publisher), _Amount())

    def _total(self, store: StoreView) -> _Amount:
        """Return the topics that have a retained message, and their bytes.

        The index also has topics whose messages have been removed, until it is compacted: the
        bytes are reduced in proportion to their number. Only new topics are measured.
        """
        keys = store.keys
        measured: _Amount = keys.derived.get(_MEASURED, _Amount())
        new = keys.texts(measured.topics)
        if new:
            measured = keys.derived[_MEASURED] = measured.with_topics(new)
        topics = store.events
        live_bytes = measured.bytes * min(topics, measured.topics) // max(measured.topics, 1)
        return _Amount(topics, live_bytes)


def _user_of(publisher: str) -> str:
    """Return the user in ``user@host``. Anonymous clients are distinguished by their hosts."""
    user, _, _ = publisher.rpartition("@")
    return publisher if user == ANONYMOUS else user
