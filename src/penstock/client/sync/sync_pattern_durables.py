"""Durables over patterns, for blocking callers."""

from __future__ import annotations

from typing import Unpack

from penstock.api.patterns import PatternDurableInfo
from penstock.client.connection.threads import LoopThread
from penstock.client.handles import pattern_durables as aio
from penstock.client.handles.attributes import (
    DurableType,
    NewDurableAttributes,
    with_durable_attributes,
)
from penstock.client.reading.start_positions import StartLike


class BlockingPatternDurables:
    """The durables over patterns of a realm: ``session.durables``."""

    def __init__(self, inner: aio.PatternDurables, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @with_durable_attributes
    def create(
        self,
        pattern: str,
        name: str,
        *,
        type: DurableType = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        if_missing: bool = False,
        **attributes: Unpack[NewDurableAttributes],
    ) -> PatternDurableInfo:
        """Give each channel of a ``pattern`` (``"orders/*"``) a durable of one name, also those
        that are made later, in the same step as the channel: no event of theirs is missed (SEM
        D22). ``start`` is for the channels that are there; the attributes are those of any durable.

        A channel that has such a durable already keeps it, where it stands. With ``if_missing`` one
        over this pattern that exists is given out, if it has this type and selector and the
        attributes given here. It needs the right ``full`` on the realm.

        Raises ``NameAlreadyBound``, also where a channel has another durable of the name,
        ``InvalidArgument``, also where a channel cannot have such a durable, ``InvalidName``,
        ``InvalidSelector``.
        """
        return self._loop.call(
            self._inner.create(
                pattern,
                name,
                type=type,
                start=start,
                selector=selector,
                persistent=persistent,
                if_missing=if_missing,
                **attributes,
            )
        )

    def get(self, pattern: str, name: str) -> PatternDurableInfo:
        """The description of one. Raises ``NameDoesNotExist``, ``InvalidName``."""
        return self._loop.call(self._inner.get(pattern, name))

    def list(self) -> list[PatternDurableInfo]:
        """Descriptions of all, by pattern and name."""
        return self._loop.call(self._inner.list())

    def delete(self, pattern: str, name: str) -> None:
        """End one for good, and remove its durables from all channels; what only they kept leaves.
        Those that another pattern gives to a channel stay. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(pattern, name))


PatternDurables = BlockingPatternDurables
"""The name that both clients have for it."""
