"""The session of a client with a realm, and the function that opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from penstock.client.handles.named import DurableLike, StoreLike, name_of_durable, name_of_store
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
from penstock_core.display import safe_repr
from penstock_core.vocabulary.delivery_runs import OUTSTANDING, EventState
from penstock_core.vocabulary.errors import (
    CannotConnect,
    InvalidArgument,
    NameDoesNotExist,
    PenstockError,
)

if TYPE_CHECKING:
    from penstock.client.copies.backup import BackupResult
    from penstock.client.copies.copy_files import CopyResult
    from penstock.client.copies.sinks import FolderLike
    from penstock_core.vocabulary.ports import Blobs


class Session:
    """A session with a realm. :func:`connect` opens it; :meth:`close` or the end of ``async with``
    closes it. Several tasks may use one session at the same time."""

    access: Access
    """Users, groups and rights."""
    channels: Channels
    """The channels of the realm."""
    queues: Queues
    """The queues of the realm."""
    joins: Joins
    """The joins of the realm."""
    mqtt: Mqtt
    """The retained messages and the MQTT sessions of the realm."""
    durables: PatternDurables
    """The pattern durables of the realm: one durable on each channel that fits a pattern."""
    connection: RealmConnection
    """The connection that the session uses, for requests of ``penstock_core.api`` that have no
    method here. It must be used on the session's event loop, and may change with any version."""

    def __init__(self, connection: RealmConnection) -> None:
        self.connection = connection
        self._requester = Requester(connection)
        connection.requester = self._requester
        connection.replier = Replies(connection)
        self.access = Access(connection)
        self.channels = Channels(connection)
        self.queues = Queues(connection)
        self.joins = Joins(connection)
        self.mqtt = Mqtt(connection)
        self.durables = PatternDurables(connection)

    @safe_repr
    def __repr__(self) -> str:
        count = self.connection.subscription_count
        subscriptions = f", {count} open subscriptions" if count else ""
        return f"<Session {self.connection.standing}{subscriptions}>"

    @property
    def session_id(self) -> str:
        """Identity of this session. Each session has a new one."""
        return self.connection.session_id

    @property
    def realm_id(self) -> str:
        """Identity of the realm, unchanged by restarts."""
        return self.connection.realm_id

    @property
    def event_bytes_max(self) -> int:
        """Size in bytes of the largest event that the realm accepts (SEM E7)."""
        return self.connection.event_bytes_max

    @property
    def is_connected(self) -> bool:
        """Whether the session is connected now. While it is not, calls wait for the next connection
        for up to ``reconnect_timeout`` seconds."""
        return self.connection.is_connected

    @property
    def interruption(self) -> PenstockError | None:
        """The error that interrupts the session now, as listeners of :meth:`on_interruption`
        receive it; None while the session is connected."""
        return self.connection.listeners.interruption

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
            # The error of the block must not be hidden. That of the close was reported.
            if error is None:
                raise

    async def close(self) -> None:
        """End the session. Settlements that were sent take effect; all other delivered events are
        available to other clients again (SEM D13).

        Waits without a time limit until the realm has confirmed the settlements in transit. Raises
        ``ConnectionLost`` if the realm cannot confirm them: those events may then be delivered
        again. Otherwise raises the first settlement error that neither a flush nor a close has
        raised. Closing a closed session does nothing.
        """
        listeners = self.connection.listeners
        try:
            try:
                await self._requester.close()
            finally:
                await self.connection.close()
        except PenstockError:
            # A close raises a single error, and raises it once.
            listeners.drop_errors()
            raise
        listeners.raise_kept_error()

    def on_error(self, listener: ErrorListener) -> None:
        """Call ``listener`` with each error that no call can raise: refused publishes of a
        pipelined producer, and settlements that were lost or refused."""
        self.connection.listeners.on_error.append(listener)

    def on_interruption(self, listener: InterruptionListener) -> None:
        """Call ``listener`` with an error when the session loses its connection, and with None when
        it is connected again.

        The error is ``RealmStopping`` if a node stops or hands the realm over, ``NoQuorum`` while
        the cluster cannot store anything, and ``ConnectionLost`` if the realm sent no reason. The
        session reconnects by itself (SEM N2, N4). Calls made during an interruption wait for up
        to ``reconnect_timeout`` seconds.
        """
        self.connection.listeners.on_interruption.append(listener)

    async def info(self) -> RealmInfo:
        """Return a description of the realm: its version, its numbers of channels, queues and
        connections, and the bytes it uses."""
        return await self.connection.ask(DescribeRealm(), RealmInfo)

    async def cluster(self) -> ClusterInfo:
        """Return a description of the realm's cluster: its nodes, the node that owns the realm, and
        the node-local channels and queues (SEM N8). Without a cluster, ``node`` is empty."""
        return await self.connection.ask(DescribeCluster(), ClusterInfo)

    async def wait_for_events(self, starts: Mapping[Destination, int], timeout: Duration) -> bool:
        """Wait until a channel or queue in ``starts`` has an event whose id is at least the one
        given for it. Return False if this does not happen within ``timeout`` seconds::

            await session.wait_for_events({orders: 42, invoices: 7}, timeout=5)
        """
        return await wait_for_events(self.connection, starts, timeout)

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
        durable: DurableLike,
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
        durable: DurableLike | None = None,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        merged: bool = False,
        buffer_bytes: int = CHANNEL_BUFFER_BYTES,
    ) -> PatternSubscription | PatternDurableSubscription:
        """Read all channels whose names match ``pattern``, including channels created later
        (SEM D21)::

            async with session.subscribe("orders/*") as events:
                async for event in events:
                    print(event.channel, event.data)

        A pattern is a text such as ``"orders/*"``, ``"eu/**"`` or ``"day-?"``, or several of them
        separated by commas. ``*`` matches any characters up to the next ``/``, ``**`` matches
        across ``/``, and ``?`` matches one character.

        Each channel is read from ``start`` on; a channel created later is read from its first
        event. The channels take turns, so that a busy channel does not delay the others.
        ``event.channel`` is the name of the channel an event was published on. Channels that the
        session's user may not read are left out. ``buffer_bytes`` applies to each channel.
        Archives are not read.

        With ``durable`` the subscription receives events of the durable of this name on each
        channel that has one. The events have to be acknowledged; at most ``window`` events of each
        channel are unsettled at a time.

        Raises ``InvalidArgument`` if ``start`` or ``merged`` is combined with ``durable``, or
        ``window`` or ``auto_ack`` is used without it.
        """
        if durable is None:
            if window is not None or auto_ack:
                raise InvalidArgument(
                    "window and auto_ack need a durable; give durable as well, or leave them out"
                )
            return PatternSubscription(
                self.connection,
                pattern,
                start_of("latest" if start is None else start),
                selector=selector,
                timeout=timeout,
                merged=merged,
                buffer_bytes=buffer_bytes,
            )
        if start is not None or merged:
            raise InvalidArgument(
                "start and merged cannot be combined with durable: a durable has its own start and "
                "always delivers whole events; leave them out"
            )
        return PatternDurableSubscription(
            self.connection,
            pattern,
            name_of_durable(durable),
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
        )

    # --- transactions --------------------------------------------------------------------

    def transaction(self) -> JointTransaction:
        """Return a transaction that publishes to several channels and queues in one step, at the
        end of its block; an exception in the block discards everything (SEM X4)::

            async with session.transaction() as tx:
                await tx.publish(orders, b"...")
                await tx.publish(work, b"...")
        """
        return JointTransaction(self.connection)

    async def is_committed(self, transaction_id: str) -> bool:
        """Return whether a transaction of this or another session was committed (SEM X2).

        ``transaction_id`` is the ``id`` of the transaction. Raises ``NoSuchTransaction`` if the
        transaction was never begun, or ended more than 24 hours ago.
        """
        return (await describe(self.connection, transaction_id)).state == "committed"

    # --- publishing in two steps ---------------------------------------------------------

    async def stage(
        self, store: Named, bodies: Sequence[pa.RecordBatch], *, group: str = ""
    ) -> list[str]:
        """Store batches in the realm without publishing them. Return the names of the stages that
        contain them, in order; :meth:`commit_stages` publishes stages.

        ``store`` is the channel or queue to publish on. The batches have the layout of
        :mod:`penstock_core.columns.schema.layout`. The realm drops a stage after one hour without a
        commit, and when it restarts. ``group`` names a piece of work that several sessions may
        stage, such as the attempts of one task: a commit also drops all other stages of the group.
        """
        parts = [part for body in bodies for part in parts_of(body, self.event_bytes_max)]
        buffers = [memoryview(batch_bytes(part)) for part in parts]
        return await stage(self.connection, store.number, parts, buffers=buffers, group=group)

    async def commit_stages(
        self,
        stages: Sequence[tuple[int, Sequence[str]]],
        *,
        producer: str,
        sequence: int,
        content: str = "",
    ) -> dict[int, range]:
        """Publish stages of any session on several channels and queues, in one step (SEM X4).

        ``stages`` is a sequence of pairs: the ``number`` of a channel or queue, and the names of
        its stages. Return the ids of the published events by that number.

        A repeated call with the same ``producer`` and ``sequence`` returns the ids of the first
        call, whatever stages it names (SEM X3). A producer has one sequence for the whole realm.
        ``content`` may identify the published events, for example by the positions from which they
        were read: a repeated call with other ``content`` raises ``DifferentContent``.

        Raises ``NoSuchStage``, ``SequenceTooOld``, ``DifferentContent``, ``CapacityReached``, and
        ``NameDoesNotExist`` if a channel or queue was deleted.
        """
        parts = tuple((number, tuple(names)) for number, names in stages)
        message = CommitStagedParts(with_content(producer, content), sequence, parts)
        info = await self.connection.ask(message, TransactionInfo)
        return {number: range(first, end) for number, (first, end) in info.spans}

    async def drop_stages(self, stages: Sequence[str]) -> None:
        """Drop stages without publishing them."""
        await self.connection.request(DropStages(tuple(stages)))

    async def delivery_state(
        self,
        channel: StoreLike,
        *,
        durable: str | None = None,
        states: Sequence[EventState] = OUTSTANDING,
        limit: int | None = None,
    ) -> pa.Table:
        """Return who has which event of the channel or queue ``channel`` and since when, as an
        Arrow table (:meth:`Channel.delivery_state`)::

            state = await session.delivery_state("orders")
            duckdb.sql("SELECT durable, state, count(*), min(since) FROM state GROUP BY ALL")

        Raises ``NameDoesNotExist``, ``InvalidArgument``.
        """
        store = await self._store(name_of_store(channel))
        return await store.delivery_state(durable=durable, states=states, limit=limit)

    async def _store(self, name: str) -> Destination:
        """Return the channel or queue of this name. Raises ``NameDoesNotExist``."""
        try:
            return await self.channels.get(name)
        except NameDoesNotExist:
            # The error that names similar channels is the better one if no queue exists either.
            with suppress(NameDoesNotExist):
                return await self.queues.get(name)
            raise

    # --- administration ------------------------------------------------------------------

    async def redrive(
        self, source: StoreLike, to: StoreLike = "", *, selector: str = "", dry_run: bool = False
    ) -> Redriven:
        """Publish the events of the dead event store ``source`` again, each once, and remove them
        from it (SEM T10).

        Each event is published on the channel or queue that it died on, or, if ``to`` is not
        empty, on the channel or queue of that name. Events without an origin stay in ``source``
        unless ``to`` is given. ``selector`` limits the redrive to matching events; ``dry_run``
        counts them and changes nothing. The next redrive continues an interrupted one.

        Raises ``NameDoesNotExist``, ``InvalidSelector``.
        """
        message = Redrive(name_of_store(source), name_of_store(to), selector, dry_run=dry_run)
        return await self.connection.ask(message, Redriven, resend=dry_run)

    async def pause_publishing(self) -> None:
        """Have the realm refuse publishes and commits of all clients, with ``PublishingPaused``,
        until :meth:`resume_publishing`, also after a restart. Reading, administration and internal
        work such as joins continue (SEM X5)."""
        await self.connection.request(PausePublishing(paused=True))

    async def resume_publishing(self) -> None:
        """Have the realm accept publishes and commits again (SEM X5)."""
        await self.connection.request(PausePublishing(paused=False))

    async def back_up(self, folder: FolderLike) -> BackupResult:
        """Write a consistent copy of everything that the realm stores to ``folder``, while the
        realm is in use.

        If the folder contains an earlier backup of this realm, only new segment files are read. A
        path that ends in ``.tar`` produces one file instead of a folder. Needs the right ``full``
        on the realm.

        Raises ``InvalidArgument``, ``IllegalState`` if the realm is in memory, ``Unavailable``
        during another backup, ``AccessDenied``, ``ConnectionLost``.
        """
        from penstock.client.copies.backup import back_up

        return await back_up(self.connection, folder)

    async def copy_files(self, place: Blobs, *, prune: bool = False) -> CopyResult:
        """Update a copy of the realm's sealed files for readers on other machines, while the realm
        is in use.

        The command ``penstock store copy`` does the same for a URI. Only files that the copy does
        not have are read from the realm. Readers of the copy see a file once it is complete.
        ``prune`` removes files that the realm no longer has. Needs the right ``full`` on the realm.

        Raises ``InvalidArgument`` if ``place`` contains something other than a copy of this realm,
        ``StorageFailed``, ``IllegalState`` if the realm is in memory, ``Unavailable`` during a
        backup, ``AccessDenied``, ``ConnectionLost``.
        """
        from penstock.client.copies.copy_files import copy_files

        return await copy_files(self.connection, place, prune=prune)


async def open_session(
    url: RealmUrl,
    *,
    reconnect_timeout: Duration = RECONNECT_TIMEOUT_S,
    connector: Connector | None = None,
    token: Token | None = None,
) -> Session:
    """Connect to a realm and return the session. With a ``reconnect_timeout`` of 0 seconds each
    address is tried once.

    ``connector`` makes the connections to an embedded realm; None means network connections. Raises
    ``InvalidArgument``, and ``CannotConnect`` with the failure of each address.
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
