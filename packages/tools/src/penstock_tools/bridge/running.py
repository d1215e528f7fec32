"""A bridge: receives messages of a source and publishes each of them once."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_tools.bridge.ledger import BridgeLedger, Superseded
from penstock_tools.bridge.sources import BridgeSource, SourceBatch, SourceLost

WAIT_S: Final = 0.5
"""Seconds after which a bridge that waits for messages checks whether it should end."""
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before the next attempts to connect; the last one repeats."""


class Forwarded(Struct, frozen=True):
    """Numbers of messages in one step of a bridge."""

    stored: int
    """Number of events that were published."""
    repeated: int = 0
    """Number of messages that were stored before and were delivered again."""
    rejected: int = 0
    """Number of messages that cannot become events."""


class Bridge:
    """Forwards messages until it is stopped, or until the source is empty."""

    def __init__(
        self,
        source: BridgeSource,
        ledger: BridgeLedger,
        *,
        on_step: Callable[[Forwarded], None] = lambda step: None,
        on_retry: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """``on_step`` is called after messages are stored and before they are settled. ``on_retry``
        is called with the reason when the connection to the source is lost, or a message cannot
        become an event."""
        self._source = source
        self._ledger = ledger
        self._on_step = on_step
        self._on_retry = on_retry
        self._foreign_steps = 0
        """Number of batches that another process with the same name has stored."""

    def run(self, stopping: Event, *, idle_s: float | None = None) -> None:
        """Forward messages until ``stopping`` is set, or, with ``idle_s``, until no message has
        arrived for so many seconds.

        Raises ``SourceLost`` if the source cannot be reached at the beginning; later it is tried
        again until it answers. Raises ``EventTooLarge`` for a message that the realm does not take,
        which stays at the source, and ``Superseded`` if another process runs a bridge with the
        same name.
        """
        try:
            self._source.connect(self._ledger.state)
            while not stopping.is_set():
                try:
                    if self._forward_until_idle(stopping, idle_s):
                        return
                except SourceLost as error:
                    self._on_retry(str(error))
                    self._reconnect(stopping)
        finally:
            self._source.close()

    def _reconnect(self, stopping: Event) -> None:
        attempts = 0
        while not stopping.wait(RETRY_S[min(attempts, len(RETRY_S) - 1)]):
            self._read_ledger()
            try:
                self._source.connect(self._ledger.state)
            except SourceLost as error:
                self._on_retry(str(error))
                attempts += 1
            else:
                return

    def _forward_until_idle(self, stopping: Event, idle_s: float | None) -> bool:
        """Forward messages; return True once the source has been silent for ``idle_s``."""
        silent_s = 0.0
        while not stopping.is_set():
            wait_s = WAIT_S if idle_s is None else min(WAIT_S, idle_s)
            collected = self._source.receive(wait_s)
            if collected is not None:
                silent_s = 0.0
                self._forward(collected)
                continue
            silent_s += wait_s
            if idle_s is not None and silent_s >= idle_s:
                return True
        return True

    def _forward(self, collected: SourceBatch) -> None:
        try:
            stored = self._store(collected)
        except Superseded as error:
            if not self._read_ledger():
                raise
            # The state of the source is older than that of the ledger.
            raise SourceLost(str(error)) from error
        rejected = len(collected.unusable)
        repeated = collected.count - rejected - stored
        if collected.count:
            self._on_step(Forwarded(stored, repeated, rejected))
        for reason in collected.unusable:
            self._on_retry(f"a message is rejected: {reason}")
        self._source.settle()

    def _read_ledger(self) -> int:
        """Read the ledger again, and return the number of batches that another process has stored
        since the last read. One such batch may be the last one of an earlier process. Raises
        ``Superseded`` if there have been more in all, because then another process still runs."""
        before = self._ledger.sequence
        self._ledger.read()
        foreign_steps = self._ledger.sequence - before
        self._foreign_steps += foreign_steps
        if foreign_steps and self._foreign_steps > 1:
            raise Superseded(
                "another process has stored messages of this bridge meanwhile; run one process "
                "for each name"
            )
        return foreign_steps

    def _store(self, collected: SourceBatch) -> int:
        """Publish the messages that are not stored yet; return their number."""
        bodies: list[pa.RecordBatch] = []
        identities: dict[str, None] = {}
        for body, ids in zip(collected.bodies, collected.identities, strict=True):
            is_new = []
            for identity in ids:
                is_repeated = identity is not None and (
                    identity in self._ledger or identity in identities
                )
                is_new.append(not is_repeated)
                if identity is not None and not is_repeated:
                    identities[identity] = None
            new = body if all(is_new) else body.filter(pa.array(is_new))
            if len(new):
                bodies.append(new)
        if bodies or collected.state != self._ledger.state:
            self._ledger.store(bodies, list(identities), collected.state)
        return sum(map(len, bodies))
