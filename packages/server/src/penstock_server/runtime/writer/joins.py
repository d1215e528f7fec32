"""Creates, lists and deletes joins (SEM L)."""

from __future__ import annotations

import secrets

from penstock_core.access.rights import Principal
from penstock_core.api.joins import JoinInfo
from penstock_core.api.operations import READING, WRITING
from penstock_core.columns.selectors import Selector
from penstock_core.loggers import logger
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.messages.joins import Join, JoinCreated
from penstock_core.vocabulary.errors import AccessDenied
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.ports import Blobs, Clock
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.outboxes import Onward, Outboxes, OutboxState
from penstock_server.runtime.writer.publish_selectors import refuse_costly
from penstock_server.runtime.writer.requests import RunAction
from penstock_server.runtime.writer.shard import Shard

_log = logger("penstock.realm")


class JoinOperations:
    """The realm's operations on joins."""

    def __init__(self, shard: Shard, dispatch: Dispatch, blobs: Blobs, clock: Clock) -> None:
        self._shard = shard
        self._choosing = dispatch.choosing
        self._clock = clock
        self.outboxes = Outboxes(shard, dispatch, blobs)
        """Copies that wait to be sent to stores of the whole cluster."""

    async def create(
        self,
        source: str,
        destination: str,
        selector: str,
        archive: bool,
        by: Principal | None = None,
    ) -> JoinInfo:
        """Create a join that copies events published on ``source`` from now on (SEM L4). It lasts
        as long as ``by`` has the rights to read ``source`` and to publish to ``destination``.

        Raises ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidArgument``, ``InvalidSelector``,
        ``LimitReached``.
        """
        owner = by.name if by is not None and not by.trusted else ""
        # Stored with the join, because its rights are checked again when its owner has no session.
        groups = tuple(sorted(by.groups)) if by is not None and owner else ()
        parsed = await self._choosing.parse(selector) if selector else None
        onward = self.outboxes.onward
        if onward is not None and self._shard.state.directory.find(destination) is None:
            join = Join(
                0,
                0,
                selector,
                archive=archive,
                owner=owner,
                groups=groups,
                outbox=secrets.token_hex(16),
            )
            return await self._create_to_cluster(
                source, destination, join, parsed=parsed, onward=onward
            )

        def create(group: Group) -> JoinInfo:
            directory = group.state.directory
            fact = directory.decide_join(
                source, destination, selector, archive=archive, owner=owner, groups=groups
            )
            refuse_costly(group.state, fact.join.source, selector, selector=parsed)
            group.realm_fact(0, fact)
            return _info(group, fact.join)

        info: JoinInfo = await self._shard.act(create)
        _log.info("join.created", source=info.source, destination=info.destination)
        return info

    async def _create_to_cluster(
        self, source: str, destination: str, join: Join, parsed: Selector | None, onward: Onward
    ) -> JoinInfo:
        """Create a join to a store of the whole cluster (SEM N9). The join is decided twice: before
        the request to the cluster, so that an invalid join costs no request, and after its answer,
        because the state may have changed since then."""

        def decide(group: Group, target: str) -> tuple[ChannelCreated | JoinCreated, ...]:
            facts = group.state.directory.decide_join_out(source, target, join)
            made = facts[-1]
            assert isinstance(made, JoinCreated), "the last fact creates the join"
            refuse_costly(group.state, made.join.source, join.selector, selector=parsed)
            return facts

        def create(group: Group) -> None:
            for fact in decide(group, target):
                group.realm_fact(0, fact)

        await self._shard.act(lambda group: decide(group, destination))
        # The cluster answers with the canonical name, and the join is then created with that name.
        target = await onward.check(join, destination)
        await self._shard.act(create)
        names = destination_name(source), target
        info = next(
            info for info in self._infos_to_cluster() if (info.source, info.destination) == names
        )
        _log.info("join.created", source=info.source, destination=info.destination)
        return info

    def _infos_to_cluster(self) -> list[JoinInfo]:
        return [self._info_to_cluster(outbox) for outbox in self.outboxes.now()]

    def _info_to_cluster(self, outbox: OutboxState) -> JoinInfo:
        """Return the description of a join from a local channel to the cluster, and of its
        outbox."""
        join, counts = outbox.join, self._shard.state.joined(outbox.join)
        now_us, oldest_us = self._clock.now_us(), outbox.oldest_us
        onward = self.outboxes.onward
        why = (
            "the node is not connected to the cluster"
            if onward is None
            else onward.waits_for(outbox.channel_id)
        )
        return JoinInfo(
            source=outbox.source,
            destination=outbox.target,
            selector=join.selector,
            archive=join.archive,
            copied=counts.copied,
            dropped=counts.dropped,
            owner=join.owner,
            leads_out=True,
            waiting=outbox.waiting,
            waiting_bytes=outbox.waiting_bytes,
            waiting_ms=0 if oldest_us is None else max(0, now_us - oldest_us) // 1_000,
            waits_for=why if outbox.waiting else "",
            ending=join.ending,
        )

    async def delete(self, source: str, destination: str) -> None:
        """Delete a join. Copies made before stay, and those in an outbox are still sent. Raises
        ``NameDoesNotExist``."""

        def delete(group: Group) -> None:
            group.realm_fact(0, group.state.directory.decide_unjoin(source, destination))

        await self._shard.act(delete)
        # Wakes the sender, which ends the outbox once the cluster has its copies.
        self._shard.state.copied_out()
        _log.info("join.deleted", source=source, destination=destination)

    def check_owners(self, access: AccessControl) -> None:
        """End the joins whose owners have lost the rights to create them (SEM A3). Called after
        rights have changed."""
        if access.is_open:
            return

        def check(group: Group) -> None:
            # A copy, because the fact below removes a join.
            for join in list(group.state.directory.joins):
                refusal = _refusal(group, join, access)
                if refusal is None:
                    continue
                target = group.state.channels[join.destination].state.name
                source = join.source_name or group.state.channels[join.source].state.name
                names = {"source": source, "destination": target}
                group.realm_fact(0, group.state.directory.decide_unjoin(source, target))
                _log.warning("join.ended", owner=join.owner, reason=refusal, **names)
                access.audit.record_later(join.owner, "join.delete", "access-denied", **names)

        self._shard.submit(RunAction(check, sweeps=()))

    async def list(self) -> tuple[JoinInfo, ...]:
        """Return all joins, sorted by source and destination."""

        def list_joins(group: Group) -> tuple[JoinInfo, ...]:
            joins = group.state.directory.joins
            infos = [_info(group, join) for join in joins if not join.leads_out]
            infos += self._infos_to_cluster()
            return tuple(sorted(infos, key=lambda info: (info.source, info.destination)))

        infos: tuple[JoinInfo, ...] = await self._shard.act(list_joins)
        return infos


def _info(group: Group, join: Join) -> JoinInfo:
    """Return the description of a join between two stores of this realm."""
    channels = group.state.channels
    counts = group.state.joined(join)
    return JoinInfo(
        source=channels[join.source].state.name,
        destination=channels[join.destination].state.name,
        selector=join.selector,
        archive=join.archive,
        copied=counts.copied,
        dropped=counts.dropped,
        owner=join.owner,
    )


def _refusal(group: Group, join: Join, access: AccessControl) -> str | None:
    """Return the reason why the owner could not create the join now; None if the owner could, or if
    the join has no owner."""
    if not join.owner or join.ending:
        return None
    user, _, host = join.owner.rpartition("@")
    owner = Principal(user, host, groups=frozenset(join.groups))
    source, destination = (
        group.state.channels[channel_id].state for channel_id in (join.source, join.destination)
    )
    required_rights = [("join.create", ""), (READING[source.definition.kind], source.name)]
    # For a join that leads out, the realm of the cluster checks this right with each request.
    if not join.leads_out:
        required_rights.append((WRITING[destination.definition.kind], destination.name))
    for operation, name in required_rights:
        try:
            access.require(owner, operation, name)
        except AccessDenied as refusal:
            return str(refusal)
    return None
