"""One lease over a pattern: events of several channels that a client has for a time (SEM H4)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from penstock_core.api.consuming import How, LeasedEvents
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import IllegalState, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.lease import EventLease, Gathering


class PatternTerms(Struct, frozen=True):
    """What a client asked for."""

    owner: str
    """Whose it is; empty where the realm does not know its users."""
    pattern: str
    """In canonical form."""
    durable: str
    count: int
    lease_ms: int


class PatternLease:
    """A part for each channel that it has events of."""

    def __init__(self, name: str, terms: PatternTerms) -> None:
        self.name = name
        self.terms = terms
        self.is_answered = False
        """Whether its client is told of it, so that what it holds is settled or goes back."""
        self.error: PenstockError | None = None
        """Why there is nothing more to wait for."""
        self.gathering = Gathering()
        self._parts: dict[ChannelId, EventLease] = {}

    @property
    def parts(self) -> tuple[EventLease, ...]:
        """The seats that it has, or had, in the order in which it took them."""
        return tuple(self._parts.values())

    @property
    def count(self) -> int:
        """How many events have come."""
        return sum([each.count for each in self._parts.values()])

    def has(self, channel: ChannelId) -> bool:
        """Whether it has a seat at this channel, or had one."""
        return channel in self._parts

    def add(self, part: EventLease) -> None:
        self._parts[part.terms.channel] = part

    def drop(self, part: EventLease) -> None:
        """Forget a channel that it has no events of."""
        self._parts.pop(part.terms.channel, None)

    def fail(self, reason: PenstockError) -> None:
        """Note why there is nothing more to wait for, or to settle."""
        self.error = reason
        for each in self._parts.values():
            each.fail(reason)
        self.gathering.came.set()

    def meant(
        self, chosen: Mapping[str, LeasedEvents] | None, how: How | None
    ) -> list[tuple[EventLease, IdSet]]:
        """The events of each channel that a request means. Raises ``IllegalState`` for a channel
        that it has no events of, and as a part's ``meant`` does."""
        if chosen is None:
            return [(each, each.meant(LeasedEvents(), how)) for each in self._parts.values()]
        by_name = {each.of_channel: each for each in self._parts.values()}
        if strange := sorted(chosen.keys() - by_name.keys()):
            raise IllegalState(
                f"no event of {strange[0]} was fetched under lease {self.name}; it holds what its "
                "fetch was answered with"
            )
        return [(by_name[name], by_name[name].meant(own, how)) for name, own in chosen.items()]
