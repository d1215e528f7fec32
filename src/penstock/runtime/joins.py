"""Making, listing and ending joins (SEM L)."""

from __future__ import annotations

import structlog

from penstock.columns.selectors import Selector
from penstock.core.joins import Join
from penstock.runtime.group import Group
from penstock.runtime.shard import Shard
from penstock.wire.native.answers import JoinInfo

_log = structlog.get_logger("penstock.realm")


class Joins:
    """What front ends ask about joins."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def create(self, source: str, destination: str, selector: str, archive: bool) -> JoinInfo:
        """Copy what is published on ``source`` from now on (SEM L4). Raises
        ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidArgument``, ``InvalidSelector``."""
        if selector:
            Selector(selector)

        def create(group: Group) -> JoinInfo:
            directory = group.state.directory
            fact = directory.decide_join(source, destination, selector, archive=archive)
            group.realm_fact(0, fact)
            return _info(group, fact.join)

        info: JoinInfo = await self._shard.act(create)
        _log.info("join.created", source=info.source, destination=info.destination)
        return info

    async def delete(self, source: str, destination: str) -> None:
        """Copy no more; what was copied stays. Raises ``NameDoesNotExist``."""

        def delete(group: Group) -> None:
            group.realm_fact(0, group.state.directory.decide_unjoin(source, destination))

        await self._shard.act(delete)
        _log.info("join.deleted", source=source, destination=destination)

    async def list(self) -> tuple[JoinInfo, ...]:
        """All joins, by source and destination."""

        def look(group: Group) -> tuple[JoinInfo, ...]:
            infos = [_info(group, join) for join in group.state.directory.joins]
            return tuple(sorted(infos, key=lambda info: (info.source, info.destination)))

        infos: tuple[JoinInfo, ...] = await self._shard.act(look)
        return infos


def _info(group: Group, join: Join) -> JoinInfo:
    channels = group.state.channels
    done = group.state.joined(join)
    return JoinInfo(
        source=channels[join.source].state.name,
        destination=channels[join.destination].state.name,
        selector=join.selector,
        archive=join.archive,
        copied=done.copied,
        dropped=done.dropped,
    )
