"""Making, listing and ending joins (SEM L)."""

from __future__ import annotations

import structlog

from penstock.api.joins import JoinInfo
from penstock.api.operations import READING, WRITING
from penstock.core.access.rights import Principal
from penstock.core.realm.directory import JoinDeleted
from penstock.core.realm.joins import Join
from penstock.core.vocabulary.errors import AccessDenied
from penstock.runtime.access.access import AccessControl
from penstock.runtime.delivery.selection import Choosing
from penstock.runtime.writer.asked import refuse_costly
from penstock.runtime.writer.group import Group
from penstock.runtime.writer.requests import RunAction
from penstock.runtime.writer.shard import Shard

_log = structlog.get_logger("penstock.realm")


class JoinOperations:
    """The realm's operations on joins."""

    def __init__(self, shard: Shard, choosing: Choosing) -> None:
        self._shard = shard
        self._choosing = choosing

    async def create(
        self,
        source: str,
        destination: str,
        selector: str,
        archive: bool,
        by: Principal | None = None,
    ) -> JoinInfo:
        """Copy what is published on ``source`` from now on (SEM L4), for as long as ``by`` may
        read there and publish here. Raises ``NameDoesNotExist``, ``NameAlreadyBound``,
        ``InvalidArgument``, ``InvalidSelector``, ``LimitReached``."""
        owner = by.name if by is not None and not by.trusted else ""
        groups = tuple(sorted(by.groups)) if by is not None and owner else ()
        parsed = await self._choosing.parse(selector) if selector else None

        def create(group: Group) -> JoinInfo:
            directory = group.state.directory
            fact = directory.decide_join(
                source, destination, selector, archive=archive, owner=owner, groups=groups
            )
            refuse_costly(group.state, fact.join.source, selector, parsed)
            group.realm_fact(0, fact)
            return _info(group, fact.join)

        info: JoinInfo = await self._shard.act(create)
        _log.info("join.created", source=info.source, destination=info.destination)
        return info

    async def delete(self, source: str, destination: str) -> None:
        """Delete a join; copies that were made stay. Raises ``NameDoesNotExist``."""

        def delete(group: Group) -> None:
            group.realm_fact(0, group.state.directory.decide_unjoin(source, destination))

        await self._shard.act(delete)
        _log.info("join.deleted", source=source, destination=destination)

    def check_owners(self, access: AccessControl) -> None:
        """Rights have changed: a join whose owner could not make it any more ends (SEM A3)."""
        if access.is_open:
            return

        def check(group: Group) -> None:
            for join in list(group.state.directory.joins):
                refusal = _refusal(group, join, access)
                if refusal is None:
                    continue
                info = _info(group, join)
                group.realm_fact(0, JoinDeleted(join.source, join.destination))
                names = {"source": info.source, "destination": info.destination}
                _log.warning("join.ended", owner=join.owner, reason=refusal, **names)
                access.audit.aside(join.owner, "join.delete", "access-denied", **names)

        self._shard.submit(RunAction(check, sweeps=()))

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
        owner=join.owner,
    )


def _refusal(group: Group, join: Join, access: AccessControl) -> str | None:
    """Why the owner of a join could not make it now; None: it could, or it has none."""
    if not join.owner:
        return None
    user, _, host = join.owner.rpartition("@")
    owner = Principal(user, host, groups=frozenset(join.groups))
    source, destination = (
        group.state.channels[number].state for number in (join.source, join.destination)
    )
    needs = (
        ("join.create", ""),
        (READING[source.definition.kind], source.name),
        (WRITING[destination.definition.kind], destination.name),
    )
    for operation, name in needs:
        try:
            access.require(owner, operation, name)
        except AccessDenied as refusal:
            return str(refusal)
    return None
