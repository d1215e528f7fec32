"""Durables and queues that a subscriber creates if they are missing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Unpack

from penstock import AccessDenied, NameDoesNotExist
from penstock.aio import Channel, Durable, Queue, Session
from penstock.client.handles.attributes import BackoffTimes, DurableType, NewDurableAttributes
from penstock.client.reading.start_positions import StartLike
from penstock_core.api.patterns import PatternDurableInfo
from penstock_core.vocabulary.choice import is_pattern

BACKOFF: Final[BackoffTimes] = {"first": "100ms", "factor": 2, "most": "1m"}
"""Backoff of shared durables and queues that a subscriber creates. Without one, an event whose
handler fails would be delivered again at once, in an endless loop."""


class DurableSub:
    """A durable of a subscriber, which creates it if it is missing::

        @broker.subscriber("orders", durable=DurableSub("billing", max_deliveries=5))

    An existing durable is used as it is.
    """

    def __init__(
        self,
        name: str,
        *,
        type: DurableType = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        **attributes: Unpack[NewDurableAttributes],
    ) -> None:
        """The arguments are those of ``Durables.create``. A shared durable has a backoff from
        100 ms to one minute unless ``backoff`` is given."""
        self.name = name
        self.type = type
        self.attributes: dict[str, Any] = {
            "type": type,
            "start": start,
            "selector": selector,
            "persistent": persistent,
            **({"backoff": BACKOFF} if type == "shared" else {}),
            **attributes,
        }

    def __repr__(self) -> str:
        return f"DurableSub({self.name!r}, type={self.type!r})"


async def durable_of(
    session: Session, channel_name: str, durable: DurableSub, *, creates: bool
) -> Durable:
    """Return a durable of a channel. With ``creates``, create the channel and the durable if they
    are missing; otherwise raise ``NameDoesNotExist``."""
    channel = await channel_of(session, channel_name, creates=creates)
    try:
        return await channel.durables.get(durable.name)
    except NameDoesNotExist:
        if not creates:
            raise
    return await channel.durables.create(durable.name, if_missing=True, **durable.attributes)


async def pattern_durable_of(
    session: Session, pattern: str, durable: DurableSub, *, creates: bool
) -> PatternDurableInfo | None:
    """Return the description of a durable over a pattern. With ``creates``, a missing durable is
    created on each channel that fits. Without it, the result is None if the durable is missing or
    if the user may not see it."""
    try:
        return await session.durables.get(pattern, durable.name)
    except (NameDoesNotExist, AccessDenied):
        if not creates:
            return None
    return await session.durables.create(
        pattern, durable.name, if_missing=True, **durable.attributes
    )


async def channel_of(session: Session, name: str, *, creates: bool) -> Channel:
    """Return a channel. With ``creates``, create a missing one; otherwise raise
    ``NameDoesNotExist``."""
    try:
        return await session.channels.get(name)
    except NameDoesNotExist:
        if not creates:
            raise
    return await session.channels.create(name, if_missing=True)


async def store_of(session: Session, name: str, *, creates: bool) -> Channel | Queue:
    """Return the channel or queue of a name. With ``creates``, create a queue if neither exists;
    otherwise raise ``NameDoesNotExist``."""
    try:
        return await session.channels.get(name)
    except NameDoesNotExist as error:
        missing = error
    with suppress(NameDoesNotExist):
        return await session.queues.get(name)
    if not creates:
        raise missing
    return await session.queues.create(name, if_missing=True, backoff=BACKOFF)


def stands_for_several(name: str) -> bool:
    """Return whether a name is a pattern or a list of names."""
    return is_pattern(name) or "," in name
