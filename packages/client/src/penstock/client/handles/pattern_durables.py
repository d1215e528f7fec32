"""Pattern durables: a durable of one name on each channel that fits a pattern (SEM D22)."""

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
from penstock.client.handles.named import DurableLike, name_of_durable
from penstock.client.reading.start_positions import StartLike, start_of
from penstock_core.api.patterns import (
    CreatePatternDurable,
    DeletePatternDurable,
    ListPatternDurables,
    PatternDurableInfo,
)
from penstock_core.display import safe_repr
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import durable_name

_INFOS: Any = list[PatternDurableInfo]


class PatternDurables:
    """The pattern durables of a realm: ``session.durables``. A pattern durable creates a durable of
    one name on every channel that fits its pattern."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<PatternDurables {self._connection.standing}>"

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
        """Create a durable of one name on each channel that fits ``pattern``, such as
        ``"orders/*"``, including channels created later (SEM D22).

        A channel created later gets its durable in the same step, so the durable misses no event.
        ``start`` is the position on channels that exist now; the attributes are those of
        :meth:`Durables.create`. A channel that already has such a durable keeps it, at its present
        position. With ``if_missing``, an existing pattern durable is returned if it has this type,
        this selector and the attributes given here. Needs the right ``full`` on the realm.

        Raises ``InvalidName``, ``InvalidSelector``; ``NameAlreadyBound``, also if a channel has a
        different durable of this name; ``InvalidArgument``, also if a channel cannot have such a
        durable.
        """
        request_values = durable_attributes_of(attributes)
        message = CreatePatternDurable(
            pattern,
            name,
            type,
            start=start_of(start),
            selector=selector,
            persistent=persistent,
            **request_values,
        )

        async def create() -> PatternDurableInfo:
            return await self._connection.ask(message, PatternDurableInfo, resend=if_missing)

        if not if_missing:
            return await create()
        info, existed = await found_or_created(lambda: self.get(pattern, name), create)
        if existed:
            required = {"type": type, "selector": selector, **request_values}
            required |= {} if persistent is None else {"persistent": persistent}
            description = f"durable {info.name} over the pattern {info.pattern}"
            refuse_differences(description, differing_fields(required, info))
        return info

    async def get(self, pattern: str, name: DurableLike) -> PatternDurableInfo:
        """Return the description of a pattern durable. Raises ``NameDoesNotExist``,
        ``InvalidName``."""
        pattern_text, normal_name = choice_of(pattern).text, durable_name(name_of_durable(name))
        for info in await self.list():
            if (info.pattern, info.name) == (pattern_text, normal_name):
                return info
        raise NameDoesNotExist(
            f"durable {normal_name} over the pattern {pattern_text} does not exist"
        )

    async def list(self) -> list[PatternDurableInfo]:
        """Return descriptions of all pattern durables, by pattern and name."""
        return await self._connection.ask(ListPatternDurables(), _INFOS)

    async def delete(self, pattern: str, name: DurableLike) -> None:
        """Delete a pattern durable and its durables on all channels. A channel that also fits
        another pattern durable of this name keeps its durable.

        Events for which only the deleted durables still waited are removed. Raises
        ``NameDoesNotExist``.
        """
        await self._connection.request(
            DeletePatternDurable(pattern, name_of_durable(name)), resend=False
        )
