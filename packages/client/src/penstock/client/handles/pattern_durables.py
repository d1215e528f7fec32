"""Durables over patterns: one of a name on each channel that fits (SEM D22)."""

from __future__ import annotations

from typing import Any, Unpack

from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import (
    DurableType,
    NewDurableAttributes,
    durable_attributes_of,
    with_durable_attributes,
)
from penstock.client.handles.if_missing import (
    differing_fields,
    found_or_created,
    refuse_differences,
)
from penstock.client.reading.start_positions import StartLike, start_of
from penstock_core.api.patterns import (
    CreatePatternDurable,
    DeletePatternDurable,
    ListPatternDurables,
    PatternDurableInfo,
)
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name

_INFOS: Any = list[PatternDurableInfo]


class PatternDurables:
    """The durables over patterns of a realm: ``session.durables``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @with_durable_attributes
    async def create(
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
        sent = durable_attributes_of(attributes)
        message = CreatePatternDurable(
            pattern,
            name,
            type,
            start=start_of(start),
            selector=selector,
            persistent=persistent,
            **sent,
        )

        async def create() -> PatternDurableInfo:
            return await self._connection.ask(message, PatternDurableInfo, resend=if_missing)

        if not if_missing:
            return await create()
        found, was_there = await found_or_created(lambda: self.get(pattern, name), create)
        if was_there:
            given = {"type": type, "selector": selector, **sent}
            given |= {} if persistent is None else {"persistent": persistent}
            what = f"durable {found.name} over the pattern {found.pattern}"
            refuse_differences(what, differing_fields(given, found))
        return found

    async def get(self, pattern: str, name: str) -> PatternDurableInfo:
        """The description of one. Raises ``NameDoesNotExist``, ``InvalidName``."""
        wanted = choice_of(pattern).text, durable_name(name)
        for each in await self.list():
            if (each.pattern, each.name) == wanted:
                return each
        raise NameDoesNotExist(f"there is no durable {wanted[1]} over the pattern {wanted[0]}")

    async def list(self) -> list[PatternDurableInfo]:
        """Descriptions of all, by pattern and name."""
        return await self._connection.ask(ListPatternDurables(), _INFOS)

    async def delete(self, pattern: str, name: str) -> None:
        """End one for good, and remove its durables from all channels; what only they kept leaves.
        Those that another pattern gives to a channel stay. Raises ``NameDoesNotExist``."""
        await self._connection.request(DeletePatternDurable(pattern, name), resend=False)
