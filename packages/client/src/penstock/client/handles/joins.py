"""Creates, lists and deletes joins, which copy published events to another store (SEM L)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.if_missing import (
    created,
    deleted,
    differing_fields,
    refuse_differences,
)
from penstock.client.handles.named import StoreLike, name_of_store
from penstock.client.handles.near_names import near_names
from penstock_core.api.channels import ListChannels
from penstock_core.api.joins import CreateJoin, DeleteJoin, JoinInfo, ListJoins
from penstock_core.display import safe_repr
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.names import destination_name

_INFOS: Any = list[JoinInfo]


class Joins:
    """The joins of a realm: ``session.joins``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<Joins {self._connection.standing}>"

    async def create(
        self,
        source: StoreLike,
        destination: StoreLike,
        *,
        selector: str = "",
        archive: bool = False,
        if_missing: bool = False,
    ) -> JoinInfo:
        """Create a join: from now on, events that are published on the channel ``source`` and match
        ``selector`` are copied to the channel or queue ``destination`` (SEM L1, L4).

        With ``archive``, the destination is a queue and also receives duplicates (SEM L3). With
        ``if_missing``, an existing join is returned if it has this ``selector`` and ``archive``.
        Raises ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidSelector``,
        ``InvalidArgument``.
        """
        source, destination = name_of_store(source), name_of_store(destination)
        message = CreateJoin(source, destination, selector, archive=archive)

        async def create(*, resend: bool) -> JoinInfo:
            return await self._connection.ask(message, JoinInfo, resend=resend)

        def check(join: JoinInfo) -> None:
            required = {"selector": selector, "archive": archive}
            description = f"the join from {join.source} to {join.destination}"
            refuse_differences(description, differing_fields(required, join))

        find = partial(self._find, source, destination)
        async with near_names(source, self._channels), near_names(destination, self._stores):
            return await created(find, create, check, if_missing=if_missing)

    async def _channels(self) -> Sequence[str]:
        names: list[str] = await self._connection.request(ListChannels())
        return names

    async def _stores(self) -> Sequence[str]:
        queues: list[str] = await self._connection.request(ListChannels("queue"))
        return [*await self._channels(), *queues]

    async def _find(self, source: str, destination: str) -> JoinInfo:
        """Return the description of a join. Raises ``NameDoesNotExist``."""
        ends = destination_name(source), destination_name(destination)
        for join in await self.list():
            if (join.source, join.destination) == ends:
                return join
        raise NameDoesNotExist(f"the join from {source} to {destination} does not exist")

    async def list(self) -> list[JoinInfo]:
        """Return descriptions of all joins, by source and destination."""
        return await self._connection.ask(ListJoins(), _INFOS)

    async def delete(self, source: StoreLike, destination: StoreLike) -> None:
        """Delete a join. Events that it has copied are not removed. Raises ``NameDoesNotExist``."""
        source, destination = name_of_store(source), name_of_store(destination)
        message = DeleteJoin(source, destination)
        find = partial(self._find, source, destination)
        async with near_names(f"{source} to {destination}", self._pairs):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    async def _pairs(self) -> Sequence[str]:
        return [f"{join.source} to {join.destination}" for join in await self.list()]
