"""A session with a realm: where everything a client does begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import (
    RECONNECT_TIMEOUT_S,
    Connector,
    RealmConnection,
)
from penstock.client.connection.credentials import Token
from penstock.client.connection.session_listeners import ErrorListener, InterruptionListener
from penstock.client.connection.urls import RealmUrl
from penstock.client.handles.access import Access
from penstock.client.handles.channels import Channels
from penstock.client.handles.destination import Destination
from penstock.client.handles.joins import Joins
from penstock.client.handles.mqtt import Mqtt
from penstock.client.handles.pattern_durables import PatternDurables
from penstock.client.handles.queues import Queues
from penstock.client.handles.requesting import Requester
from penstock.client.handles.wait_for_events import wait_for_events
from penstock.client.publishing.publishing import parts_of, stage
from penstock.client.publishing.replying import Replies
from penstock.client.publishing.transaction import JointTransaction, Named, describe
from penstock.client.reading.pattern_subscription import (
    CHANNEL_BUFFER_BYTES,
    PatternDurableSubscription,
    PatternSubscription,
)
from penstock.client.reading.start_positions import StartLike, start_of
from penstock_core.access.name_owners import with_content
from penstock_core.api.joins import Redrive, Redriven
from penstock_core.api.publishing import CommitStagedParts, DropStages
from penstock_core.api.realm import (
    ClusterInfo,
    DescribeCluster,
    DescribeRealm,
    PausePublishing,
    RealmInfo,
)
from penstock_core.api.transactions import TransactionInfo
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.vocabulary.errors import CannotConnect, InvalidArgument, PenstockError

if TYPE_CHECKING:
    from penstock.client.copies.backup import BackupResult
    from penstock.client.copies.copy_files import CopyResult
    from penstock.client.copies.sinks import FolderLike
    from penstock_core.vocabulary.ports import Blobs


class Session:
    """A session with a realm: opened by :func:`connect`, closed by :meth:`close` or at the end of
    ``async with``."""

    access: Access
    """Users, groups and rights."""
    channels: Channels
    """The channels of the realm."""
    queues: Queues
    """The queues of the realm."""
    joins: Joins
    """The joins of the realm."""
    mqtt: Mqtt
    """Retained messages and sessions of MQTT."""
    durables: PatternDurables
    """The durables over patterns of the realm."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection
        self._requester = Requester(connection)
        connection.requester = self._requester
        connection.replier = Replies(connection)
        self.access = Access(connection)
        self.channels = Channels(connection)
        self.queues = Queues(connection)
        self.joins = Joins(connection)
        self.mqtt = Mqtt(connection)
        self.durables = PatternDurables(connection)

    def __repr__(self) -> str:
        return f"<Session at {self._connection.place}>"

    @property
    def session_id(self) -> str:
        """Identity of this session: another one each time."""
        return self._connection.session_id

    @property
    def realm_id(self) -> str:
        """Identity of the realm; the same over restarts."""
        return self._connection.realm_id

    @property
    def event_bytes_max(self) -> int:
        """Size of the largest event the realm takes (SEM E7)."""
        return self._connection.event_bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now. What is asked without one waits for the next."""
        return self._connection.is_connected

    @property
    def interruption(self) -> PenstockError | None:
        """What interrupts the session now, as :meth:`on_interruption` is told; None: nothing."""
        return self._connection.listeners.interruption

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except PenstockError:
            if error is None:
                raise  # otherwise it was reported, and the earlier error matters

    async def close(self) -> None:
        """End the session in order: settled events are settled, all others go back (SEM D13).

        It waits until the realm has confirmed what is on its way, however slow the realm is. Raises
        ``ConnectionLost`` if that cannot be confirmed: the last settled events may then be
        delivered again. Otherwise it raises the first error of a settlement that neither a flush
        nor a close has raised. Closing again does nothing.
        """
        listeners = self._connection.listeners
        try:
            try:
                await self._requester.close()
            finally:
                await self._connection.close()
        except PenstockError:
            listeners.forget_owed()  # one error is raised, once
            raise
        listeners.raise_owed()

    def on_error(self, listener: ErrorListener) -> None:
        """Hear of errors that belong to no call: refused pipelined publishes, lost settlements."""
        self._connection.listeners.on_error.append(listener)

    def on_interruption(self, listener: InterruptionListener) -> None:
        """Hear when the session loses its connection, with the reason as an error, and with None
        when it has one again.

        The error is ``RealmStopping`` when a node hands over or is stopped, ``NoQuorum`` while the
        cluster can store nothing, and ``ConnectionLost`` where the realm has not said why. The
        session goes on by itself (SEM N2, N4): what is asked meanwhile waits, up to
        ``reconnect_timeout``.
        """
        self._connection.listeners.on_interruption.append(listener)

    async def info(self) -> RealmInfo:
        """A description of the realm."""
        return await self._connection.ask(DescribeRealm(), RealmInfo)

    async def cluster(self) -> ClusterInfo:
        """The cluster that the realm is in: its nodes, who owns the realm, and which channels and
        queues single nodes have for themselves (SEM N8); without a cluster it has no node."""
        return await self._connection.ask(DescribeCluster(), ClusterInfo)

    async def wait_for_events(self, starts: Mapping[Destination, int], timeout: Duration) -> bool:
        """Wait until one of the channels and queues has an event of the id given with it, or a
        later one; False: none has for ``timeout`` seconds."""
        return await wait_for_events(self._connection, starts, timeout)

    # --- reading a pattern ---------------------------------------------------------------

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        start: StartLike = "latest",
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription: ...

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        durable: str,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternDurableSubscription: ...

    def subscribe(
        self,
        pattern: str,
        *,
        start: StartLike | None = None,
        durable: str | None = None,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription | PatternDurableSubscription:
        """Read all channels that ``pattern`` names, also those that are made later (SEM D21):
        ``"orders/*"``, ``"eu/**"``, ``"day-?"``, or several between commas. ``*`` stands for any
        part of a name up to the next ``/``, ``**`` for any part across them.

        Each channel is read from ``start`` on, and one that is made later from its first event.
        The channels have their turns, so that a busy one does not hold up the others;
        ``event.channel`` tells where an event came from. Channels that one may not read are left
        out. ``buffer_bytes`` counts for each channel; archives are not read.

        With ``durable`` it takes a seat at the durable of that name on each channel that has one:
        events are to be acknowledged, at most ``window`` of a channel unsettled at a time.
        Raises ``InvalidArgument`` for options of the other kind.
        """
        if durable is None:
            if window is not None or auto_ack:
                raise InvalidArgument(
                    "window and auto_ack are for events that are acknowledged; give a durable, too"
                )
            return PatternSubscription(
                self._connection,
                pattern,
                start_of("latest" if start is None else start),
                selector=selector,
                timeout=timeout,
                merged=merged,
                buffer_bytes=buffer_bytes,
            )
        if start is not None or merged:
            raise InvalidArgument(
                "a durable has its own start, and always delivers whole events; leave out start "
                "and merged"
            )
        return PatternDurableSubscription(
            self._connection,
            pattern,
            durable,
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
        )

    # --- transactions --------------------------------------------------------------------

    def transaction(self) -> JointTransaction:
        """Publish to several channels and queues in one step (SEM X4)::

        async with session.transaction() as tx:
            await tx.publish(orders, b"...")
            await tx.publish(work, b"...")
        """
        return JointTransaction(self._connection)

    async def is_committed(self, transaction_id: str) -> bool:
        """Whether a transaction, of this session or another, was committed (SEM X2).

        Raises ``NoSuchTransaction`` for one never begun, or ended more than 24 hours ago.
        """
        return (await describe(self._connection, transaction_id)).state == "committed"

    # --- publishing in two steps ---------------------------------------------------------

    async def stage(
        self, store: Named, bodies: Sequence[pa.RecordBatch], *, group: str = ""
    ) -> list[str]:
        """Stage batches for a channel or queue, visible to nobody; gives the names of the stages,
        in order.

        The batches are bodies as :mod:`penstock_core.columns.schema.layout` defines them. A stage
        is dropped after an hour without a commit, and by a restart of the realm. A commit also
        drops the stages that others, who do the same work, have staged under the same ``group``.
        """
        parts = [part for body in bodies for part in parts_of(body, self.event_bytes_max)]
        buffers = [memoryview(batch_bytes(part)) for part in parts]
        return await stage(self._connection, store.number, parts, buffers=buffers, group=group)

    async def commit_stages(
        self,
        stages: Sequence[tuple[int, Sequence[str]]],
        *,
        producer: str,
        sequence: int,
        content: str = "",
    ) -> dict[int, range]:
        """Publish stages of any session on several channels and queues, in one step (SEM X4).

        ``stages`` has pairs of a store's number and its stages; gives the ids by number. Repeating
        it with the same ``producer`` and ``sequence``, which count for the whole realm, gives the
        ids of the first time, whatever stages it names (SEM X3). ``content`` may identify what is
        published: with another one a repetition is refused. Raises ``NoSuchStage``,
        ``SequenceTooOld``, ``DifferentContent``, ``NameDoesNotExist`` for a deleted store,
        ``CapacityReached``.
        """
        parts = tuple((number, tuple(names)) for number, names in stages)
        message = CommitStagedParts(with_content(producer, content), sequence, parts)
        info = await self._connection.ask(message, TransactionInfo)
        return {number: range(first, end) for number, (first, end) in info.spans}

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Drop stages that are not to be committed."""
        await self._connection.request(DropStages(tuple(stages)))

    # --- administration ------------------------------------------------------------------

    async def redrive(
        self, source: str, to: str = "", *, selector: str = "", dry_run: bool = False
    ) -> Redriven:
        """Publish dead events again, each once, and remove them from their store (SEM T10).

        Each goes where it came from, or all go ``to`` a channel or queue; those without an origin
        stay. A redrive that was interrupted is continued by the next one. Raises
        ``NameDoesNotExist``, ``InvalidSelector``.
        """
        message = Redrive(source, to, selector, dry_run=dry_run)
        return await self._connection.ask(message, Redriven, resend=dry_run)

    async def pause_publishing(self) -> None:
        """Refuse publishes and commits of all clients from now on, also after a restart; the
        realm's own work, reading and administration go on (SEM X5)."""
        await self._connection.request(PausePublishing(paused=True))

    async def resume_publishing(self) -> None:
        """Take publishes and commits again (SEM X5)."""
        await self._connection.request(PausePublishing(paused=False))

    async def back_up(self, folder: FolderLike) -> BackupResult:
        """Write all that the realm has stored into a folder, as it stands now; traffic goes on.

        A folder with an earlier backup of this realm is brought up to date: segment files that
        are in it already are not read again. A name that ends in ``.tar`` makes one file. Needs
        ``full`` on the realm. Raises ``InvalidArgument``, ``IllegalState`` for a realm in memory,
        ``Unavailable`` while another backup is under way, ``AccessDenied``, ``ConnectionLost``.
        """
        from penstock.client.copies.backup import back_up

        return await back_up(self._connection, folder)

    async def copy_files(self, place: Blobs, *, prune: bool = False) -> CopyResult:
        """Bring a copy of the realm's sealed files up to date, for readers elsewhere, while the
        realm is in use.

        ``penstock store copy`` does this with a URI. Only files that the copy lacks are read, and
        each appears complete. ``prune`` removes those that the realm no longer has. Needs ``full``
        on the realm.

        Raises ``InvalidArgument`` if the place is not a copy of this realm, ``StorageFailed``,
        ``IllegalState`` for a realm in memory, ``Unavailable`` during a backup, ``AccessDenied``,
        ``ConnectionLost``.
        """
        from penstock.client.copies.copy_files import copy_files

        return await copy_files(self._connection, place, prune=prune)


async def open_session(
    url: RealmUrl,
    *,
    reconnect_timeout: Duration = RECONNECT_TIMEOUT_S,
    connector: Connector | None = None,
    token: Token | None = None,
) -> Session:
    """Connect; ``reconnect_timeout`` in seconds, 0 tries once.

    Raises ``InvalidArgument``, and ``CannotConnect`` naming each address and its reason.
    """
    connection = RealmConnection(
        url, reconnect_timeout=reconnect_timeout, connector=connector, token=token
    )
    try:
        await connection.open()
    except CannotConnect:
        if connector is not None:
            raise
        from penstock.client.connection.wrong_port import explained

        explanation = await explained(connection.failures, is_tls=url.tls)
        if explanation is None:
            raise
        raise explanation from None
    return Session(connection)
