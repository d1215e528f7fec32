"""Refuses attributes of a store that have no effect in combination with the others (SEM C3, S).

An attribute is refused if it can never have an effect on a store of its type, or if it contradicts
another attribute: a user who sets it expects behaviour that will not happen. It is accepted if an
edit of another attribute could give it an effect, or if it states a bound that holds anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock_core.channel.channel_type import ChannelType
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import InvalidArgument

OF_SYNCS = ("sync", "sync_each_write", "sync_max_batch_size", "sync_batch_time")
"""Storage properties that control when events are on disk."""
OF_FILES = (
    "events_per_spindle",
    "auto_maintenance",
    "enable_caching",
    "cache_on_reload",
    "read_buffer_size",
    "compression",
)
"""Storage properties that control how files below ``segments/`` are kept and read."""
OF_STORED_EVENTS = ("keys", "dead_event_store", "retain_consumed")
"""Attributes that have an effect only on channel types that store events."""

_DEFAULTS, _STORAGE_DEFAULTS = Definition(), Storage()


def refuse_without_effect(definition: Definition, kind: ChannelType, *, merges: bool) -> None:
    """Raise ``InvalidArgument`` for an attribute without effect on a store of this type or together
    with another attribute. The error names the correct choice."""
    if merges:
        for name in _changed(definition.storage, OF_FILES):
            raise InvalidArgument(
                f"{name} has no effect on engine {definition.engine}: its states are kept in "
                f"memory, not in segment files; leave it out, or use engine default or jms"
            )
    for name, needed in _without_effect(definition, kind):
        raise InvalidArgument(
            f"{name} has no effect on a {kind.name} {definition.kind}: it applies to types that "
            f"{needed}; leave it out, or use one of them"
        )
    storage = definition.storage
    if storage.sync_each_write and storage.sync == "none":
        raise InvalidArgument(
            "storage.sync_each_write asks for one sync per publish and storage.sync 'none' for "
            "none at all; set sync to 'group', or turn sync_each_write off"
        )
    if storage.cache_on_reload and not storage.enable_caching:
        raise InvalidArgument(
            "storage.cache_on_reload fills the cache when the realm starts, but "
            "storage.enable_caching is off; turn that on, or cache_on_reload off"
        )


def _without_effect(definition: Definition, kind: ChannelType) -> Iterator[tuple[str, str]]:
    """Yield attributes that differ from their default and have no effect on stores of this type,
    each with the types that support it."""
    if kind.relays:
        for name in OF_STORED_EVENTS:
            if getattr(definition, name) != getattr(_DEFAULTS, name):
                yield name, "store events (mixed, persistent, reliable)"
    if kind.home not in ("journal", "pages"):
        for name in _changed(definition.storage, OF_SYNCS):
            yield name, "keep events on disk (mixed, persistent, paged)"
    if kind.home != "journal":
        for name in _changed(definition.storage, OF_FILES):
            yield name, "keep events in segment files (mixed, persistent)"


def _changed(storage: Storage, names: Sequence[str]) -> Iterator[str]:
    """Yield the properties among ``names`` whose values differ from their defaults."""
    for name in names:
        if getattr(storage, name) != getattr(_STORAGE_DEFAULTS, name):
            yield f"storage.{name}"
