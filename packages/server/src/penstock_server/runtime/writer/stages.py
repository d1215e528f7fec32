"""Staged batches: uploaded first and published in one step later, for large publishes and Spark
micro-batches.

A stage is one upload. It is not stored: after a restart the commit fails with ``NoSuchStage``, and
the client uploads it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from penstock_core.access.name_owners import owned, owner_of, plain
from penstock_core.vocabulary.errors import MemoryLimit, NoSuchStage
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.store.bodies import Body, digest_of
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.publish_stops import refuse_stopped
from penstock_server.runtime.writer.requests import PublishBatches, ShardRequest, is_remembered

STAGE_LIFETIME_US = 3_600 * 1_000_000
"""Microseconds after which a stage that was not committed is dropped."""


STAGE_BYTES = 1 << 10
"""Bytes of memory that a stage takes in addition to its events, as they count in the limits."""


class _Stage(Struct):
    channel_id: int
    bodies: Sequence[Body]
    size: int
    at_us: int


class Stages:
    """All stages of a realm, with limits on their bytes in all and per user."""

    def __init__(self, clock: Clock, bytes_max: int) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        self._by_id: dict[str, _Stage] = {}
        self._groups: dict[str, set[str]] = {}
        """Names of the stages of all attempts at a task, by task."""
        self._bytes_by_owner: dict[str, int] = {}
        """Bytes staged, by user."""
        self.size = 0
        """Bytes of all stages."""

    def put(self, stage: str, channel_id: int, bodies: Sequence[Body]) -> None:
        """Keep ``bodies`` for a channel. A stage that exists already is left unchanged, so that an
        upload may be repeated. Raises ``MemoryLimit``."""
        if stage in self._by_id:
            return
        size = STAGE_BYTES + sum(body.weight for body in bodies)
        owner = owner_of(stage)
        owner_bytes = self._bytes_by_owner.get(owner, 0) + size
        # Half at most, so that one user cannot keep all others from staging.
        if owner and owner_bytes > self._bytes_max // 2:
            raise MemoryLimit(
                f"with these {size} bytes, {owner} has {owner_bytes} staged bytes; allowed for one "
                f"user are {self._bytes_max // 2}, half of limits.stage_bytes: commit or drop some "
                f"stages"
            )
        if self.size + size > self._bytes_max:
            raise MemoryLimit(
                f"a stage of {size} bytes cannot be stored, because only "
                f"{self._bytes_max - self.size} of {self._bytes_max} bytes are free; "
                "commit smaller micro-batches, or raise the setting limits.stage_bytes"
            )
        self._by_id[stage] = _Stage(channel_id, bodies, size, at_us=self._clock.now_us())
        self._groups.setdefault(_task_of(stage), set()).add(stage)
        self.size += size
        self._bytes_by_owner[owner] = owner_bytes

    def bodies_of(self, stages: Sequence[str], channel_id: int) -> list[Body]:
        """Return the batches of ``stages``, in that order. Raises ``NoSuchStage``."""
        missing = [
            s for s in stages if s not in self._by_id or self._by_id[s].channel_id != channel_id
        ]
        if missing:
            raise NoSuchStage(
                f"the realm no longer has {len(missing)} of {len(stages)} stages (it restarted, "
                f"another node took over, or an hour passed); stage the rows again"
            )
        return [body for stage in stages for body in self._by_id[stage].bodies]

    def remaining_bodies(self, stages: Sequence[str]) -> list[Body]:
        """Return the batches of those ``stages`` that still exist."""
        return [body for s in stages if s in self._by_id for body in self._by_id[s].bodies]

    def drop(self, stages: Sequence[str]) -> None:
        """Drop the stages of these names; names without a stage are ignored."""
        for stage in stages:
            dropped = self._by_id.pop(stage, None)
            if dropped is not None:
                self.size -= dropped.size
                self._release(owner_of(stage), dropped.size)
                group = self._groups[_task_of(stage)]
                group.discard(stage)
                if not group:
                    del self._groups[_task_of(stage)]

    def _release(self, owner: str, size: int) -> None:
        self._bytes_by_owner[owner] -= size
        if not self._bytes_by_owner[owner]:
            del self._bytes_by_owner[owner]

    def drop_published(self, stages: Sequence[str]) -> None:
        """Drop published stages, and the stages of other attempts at the same task."""
        self.drop(stages)
        for group in {_task_of(stage) for stage in stages} - {""}:
            self.drop(sorted(self._groups.get(group, ())))

    def expire(self) -> None:
        """Drop the stages that are older than ``STAGE_LIFETIME_US``."""
        horizon = self._clock.now_us() - STAGE_LIFETIME_US
        self.drop([stage for stage, staged in self._by_id.items() if staged.at_us < horizon])


def _task_of(stage: str) -> str:
    """Return the part of a stage's name that all attempts at one task share."""
    return owned(plain(stage).rpartition("/")[0], owner_of(stage))


class CommitStaged(ShardRequest):
    """Publish staged batches in one step, exactly once (SEM X1, X3)."""

    channel_id: int
    stages: Stages
    names: Sequence[str]
    producer: str
    sequence: int
    event_bytes_max: int
    publisher: str = ""

    @property
    def bodies(self) -> Sequence[Body]:
        return self.stages.remaining_bodies(self.names)

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ((self.channel_id, self.bodies),)

    def is_decided(self, state: RealmState) -> bool:
        """Whether the answer is known, because the publish was stored earlier or its sequence is
        too old."""
        return is_remembered(state, self.channel_id, self.producer, sequence=self.sequence)

    def run(self, group: Group) -> Any:
        group.settle()
        channel = group.channel(self.channel_id)
        # Before the stages are looked up: a repeated commit is answered although its stages were
        # dropped.
        if self.producer:
            stored_span = channel.state.producers.stored_as(self.producer, self.sequence)
            if stored_span is not None:
                return stored_span
        refuse_stopped(group, (self.channel_id,))
        bodies = self.stages.bodies_of(self.names, self.channel_id)
        digest = digest_of(bodies, self.event_bytes_max)
        return PublishBatches(
            self.channel_id,
            digest,
            bodies,
            producer=self.producer,
            sequence=self.sequence,
            overshoot=not channel.state.is_full,  # the commit is one unit (SEM T4)
            publisher=self.publisher,
        ).run(group)
