"""Send events from the outboxes of a node's local channels to the realm of the cluster (SEM N9)."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from penstock_core.api.joins import CopiesTaken
from penstock_core.channel.producers import LASTING_PREFIX
from penstock_core.ids.ids import IdSet
from penstock_core.loggers import logger
from penstock_core.messages.joins import Join
from penstock_core.vocabulary.errors import (
    IllegalState,
    NameDoesNotExist,
    PenstockError,
    RealmStopping,
    Unavailable,
)
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.outboxes import Outboxes, OutboxState, Outgoing

POLL_S: Final = 2.0
"""Longest pause between two polls of the outboxes without a notification, in seconds."""
RETRY_S: Final = 0.1
"""First pause before a failed copy is sent again, in seconds; it doubles with each failure."""
NOTHING: Final = Outgoing((), (), IdSet())
"""No copies; sent to check whether the cluster would store copies."""

_log = logger("penstock.local")


class CopyTarget(Protocol):
    """Sends copies to the owner of the cluster's realm."""

    async def copy_in(
        self, join: Join, target: str, producer: str, copies: Outgoing
    ) -> CopiesTaken:
        """Return once the cluster has stored the copies on ``target`` with the rights of the join's
        owner; without copies, check whether it would. After an error it is unknown whether they are
        stored, and the same ids may be sent again."""
        ...


class OutboxSender:
    """Sends waiting events in order, repeats them until they are confirmed, and then removes
    them."""

    def __init__(self, realm: RunningRealm, copy_target: CopyTarget) -> None:
        self._outboxes: Outboxes = realm.joins.outboxes
        self._incidents = realm.incidents
        self._copy_target = copy_target
        self._reasons: dict[int, str] = {}
        """Reason why the events of an outbox wait, by outbox."""
        self._retries: dict[int, tuple[float, float]] = {}
        """Time of an outbox's next attempt, in seconds of the loop, and the length of the pause."""
        self._changed = asyncio.Event()
        self._outboxes.onward = self
        self._outboxes.on_change(self._changed.set)

    # --- requests of the realm -----------------------------------------------------------

    async def check(self, join: Join, target: str) -> str:
        """Check that events can be copied to ``target`` with the rights of the join's owner, and
        return its canonical name. Raises the error that prevents it."""
        result = await self._copy_target.copy_in(join, target, "", copies=NOTHING)
        return result.name

    def waits_for(self, outbox: int) -> str:
        """Return the reason why events of an outbox wait; empty while they are being sent."""
        return self._reasons.get(outbox, "")

    # --- sending -------------------------------------------------------------------------

    async def run(self) -> None:
        """Send until cancelled, or until the realm stops."""
        now = asyncio.get_running_loop().time
        while True:
            # Cleared first, so that a change during the poll leads to another poll.
            self._changed.clear()
            try:
                has_sent = [await self._step_contained(outbox) for outbox in self._outboxes.now()]
            except RealmStopping:
                return
            if any(has_sent):
                continue
            soonest = min(
                (again_s for again_s, _ in self._retries.values()), default=now() + POLL_S
            )
            wait_s = min(POLL_S, max(0.0, soonest - now()))
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _step_contained(self, outbox: OutboxState) -> bool:
        """Run :meth:`_step` so that an unexpected failure affects only this outbox."""
        if self._incidents.is_paused("outboxes", outbox.channel_id):
            return False
        with self._incidents.barrier("outboxes", outbox.channel_id):
            return await self._step(outbox)
        return False

    async def _step(self, outbox: OutboxState) -> bool:
        """Send the oldest events of an outbox. Returns whether more may be waiting."""
        outbox_id, now_s = outbox.channel_id, asyncio.get_running_loop().time()
        if outbox_id in self._retries and self._retries[outbox_id][0] > now_s:
            return False
        try:
            copies = await self._outboxes.next(outbox_id)
            if copies is None:
                self._clear_failure(outbox_id)
                if outbox.join.ending and await self._outboxes.end(outbox_id):
                    _log.info("outbox.ended", source=outbox.source, destination=outbox.target)
                return False
            await self._send(outbox, copies)
            await self._outboxes.sent(outbox_id, copies.ids)
        except RealmStopping:
            raise
        except (NameDoesNotExist, IllegalState) as error:
            await self._handle_refusal(outbox, error)
            return False
        except PenstockError as error:
            self._note_failure(outbox, error)
            return False
        self._clear_failure(outbox_id)
        return True

    async def _send(self, outbox: OutboxState, copies: Outgoing) -> None:
        """Send copies to the cluster, and return once it has stored them. Raises the errors of the
        owner, and ``IllegalState`` if the node was restored from a backup."""
        # The producer makes a repeated copy recognizable, so that it is stored once.
        producer = f"{LASTING_PREFIX}out:{outbox.join.outbox}"
        try:
            result = await self._copy_target.copy_in(
                outbox.join, outbox.target, producer, copies=copies
            )
        except RealmStopping as error:  # the cluster's realm stops; another node serves it soon
            raise Unavailable(str(error)) from error
        newest = copies.ids.highest
        assert newest is not None, "copies that were sent have ids"
        if result.known > max(newest, outbox.next_id - 1):
            raise IllegalState(
                f"{outbox.target} has had later events of this join than the node knows of, so the "
                f"node was restored from a backup, and the node cannot know which of these were "
                f"copied: delete the join and create it again"
            )

    async def _handle_refusal(self, outbox: OutboxState, error: PenstockError) -> None:
        """Handle a destination that does not exist or refuses the events, or an outbox that has
        just ended."""
        if not any(current.channel_id == outbox.channel_id for current in self._outboxes.now()):
            self._clear_failure(outbox.channel_id)
        elif not outbox.join.ending:
            self._note_failure(outbox, error)
        elif await self._outboxes.end(outbox.channel_id, given_up=True):
            self._clear_failure(outbox.channel_id)
            _log.warning(
                "outbox.given_up",
                source=outbox.source,
                destination=outbox.target,
                events=outbox.waiting,
                reason=str(error),
            )

    def _note_failure(self, outbox: OutboxState, error: PenstockError) -> None:
        """Log a new reason why events of an outbox wait, and set the time of the next attempt."""
        outbox_id, reason = outbox.channel_id, str(error)
        if self._reasons.get(outbox_id) != reason:
            _log.warning(
                "outbox.waiting",
                source=outbox.source,
                destination=outbox.target,
                code=error.code,
                reason=reason,
            )
        self._reasons[outbox_id] = reason
        # Half of the first pause, because the next line doubles it.
        _, pause_s = self._retries.get(outbox_id, (0.0, RETRY_S / 2))
        pause_s = min(2 * pause_s, POLL_S)
        self._retries[outbox_id] = asyncio.get_running_loop().time() + pause_s, pause_s

    def _clear_failure(self, outbox_id: int) -> None:
        self._retries.pop(outbox_id, None)
        self._reasons.pop(outbox_id, None)
