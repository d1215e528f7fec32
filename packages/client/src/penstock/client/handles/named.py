"""Channels, queues and durables as arguments: by their names, or by handles of either client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from penstock.client.publishing.transaction import Named
from penstock_core.vocabulary.errors import InvalidArgument


@runtime_checkable
class NamedDurable(Protocol):
    """A handle of a durable, or a subscription to one, of either client."""

    @property
    def name(self) -> str: ...

    @property
    def channel_name(self) -> str: ...


StoreLike: TypeAlias = str | Named
"""The name of a channel or queue, or its handle."""

DurableLike: TypeAlias = str | NamedDurable
"""The name of a durable, its handle, or a subscription to it."""


def name_of_store(store: StoreLike) -> str:
    """Return the name of a channel or queue. A value that is neither a name nor a handle is
    returned unchanged, so that the check of the request refuses it."""
    return store.name if isinstance(store, Named) else store


def name_of_durable(durable: DurableLike, channel_name: str = "") -> str:
    """Return the name of a durable. A value that is neither a name nor a handle is returned
    unchanged, so that the check of the request refuses it.

    Raises ``InvalidArgument`` for a handle of a durable of another channel than ``channel_name``,
    which is empty if the channel does not matter.
    """
    if not isinstance(durable, NamedDurable):
        return durable
    if channel_name and durable.channel_name != channel_name:
        raise InvalidArgument(
            f"durable {durable.name} belongs to channel {durable.channel_name}, not to "
            f"{channel_name}; use the durables of its own channel, or give its name"
        )
    return durable.name


def with_names(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return attributes of a channel or queue with the name of the dead event store instead of its
    handle."""
    if "dead_event_store" not in attributes:
        return attributes
    return {**attributes, "dead_event_store": name_of_store(attributes["dead_event_store"])}
