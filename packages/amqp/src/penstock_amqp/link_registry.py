"""The links of all connections by name, and those that send to each destination."""

from __future__ import annotations

from typing import Protocol

LinkName = tuple[str, str | int, str, bool]
"""Identity of a link: user, container, link name, and whether it sends to the client. A container
without a name is identified by its connection. The user prevents access to other users' links."""


class NamedLink(Protocol):
    """A link that has to end when a newer one has the same name."""

    def steal(self) -> None:
        """End the link, because a newer one replaces it (2.6.1)."""
        ...

    async def wait_until_over(self) -> None:
        """Wait until everything that depended on the link has ended."""
        ...


class DestinationProducer(Protocol):
    """A link that sends to one destination."""

    @property
    def number(self) -> int | None:
        """Id of the destination; None if each message names its own."""
        ...

    def deleted(self) -> None:
        """End the link, because its destination was deleted."""
        ...


class LinkRegistry:
    """The links of all connections."""

    def __init__(self) -> None:
        self._named: dict[LinkName, NamedLink] = {}
        self._producers: dict[int, dict[DestinationProducer, None]] = {}
        """Links that send to one destination, by its id."""

    def add(self, name: LinkName, link: NamedLink) -> NamedLink | None:
        """Register a link. An older link with this name is stolen and returned (2.6.1)."""
        older = self._named.get(name)
        self._named[name] = link
        if older is not None:
            older.steal()
        return older

    def remove(self, name: LinkName, link: NamedLink) -> None:
        """Forget a link that is over."""
        if self._named.get(name) is link:
            del self._named[name]

    def add_producer(self, producer: DestinationProducer) -> None:
        """Register a link that sends to one destination."""
        if producer.number is not None:
            self._producers.setdefault(producer.number, {})[producer] = None

    def remove_producer(self, producer: DestinationProducer) -> None:
        """Forget a link that sends to one destination."""
        if producer.number is not None and (producers := self._producers.get(producer.number)):
            producers.pop(producer, None)
            if not producers:
                del self._producers[producer.number]

    def end_producers(self, number: int) -> None:
        """End the links that send to a deleted channel or queue; links that receive from it end
        with their subscriptions."""
        for producer in self._producers.pop(number, {}):
            producer.deleted()
