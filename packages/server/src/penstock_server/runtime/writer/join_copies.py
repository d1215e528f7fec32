"""Copies of joins: events published on a store are copied to other stores in the same step (SEM
L)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.origin import (
    for_join,
    path_contains,
    path_lengths,
    stores_on_paths,
)
from penstock_core.columns.selectors import selector_of
from penstock_core.columns.selectors.frames import EventFrame, MessageAccess
from penstock_core.ids.ids import Span
from penstock_core.messages.joins import Join
from penstock_core.realm.joins import HOPS_MAX
from penstock_core.vocabulary.errors import CapacityReached
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.message_fields import messages_of
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.following_publish import (
    Bools,
    FollowingPublish,
    ReachedStores,
    Rows,
)


class CopyCandidates:
    """A batch that was just published, with the rows that each selector of its joins matches. Each
    selector is evaluated once."""

    __slots__ = (
        "_frame",
        "_masks",
        "_messages",
        "_now_us",
        "_passed_stores",
        "batch",
        "outcomes",
        "roots",
        "span",
        "too_far",
    )

    def __init__(
        self,
        body: Body,
        span: Span,
        roots: Rows,
        now_us: int,
        messages: MessageAccess | None = None,
    ) -> None:
        batch = self.batch = body.batch
        self.outcomes = body.outcomes
        self.span = span
        self.roots = roots
        """The row of the first publish that each row is a copy of; see :class:`ReachedStores`."""
        self._now_us = now_us
        self._messages = messages
        self._frame: EventFrame | None = None
        self._masks: dict[str, Bools] = {}
        self._passed_stores: set[str] = stores_on_paths(batch)
        """The stores that some of the body's events have passed through."""
        # The usual case: no event has been copied before, so there are no hops to count.
        self.too_far: Bools | None = path_lengths(batch) > HOPS_MAX if self._passed_stores else None

    @property
    def passing(self) -> Bools:
        """Mask of the transient rows (SEM E8). They cannot wait in an outbox, as they are not
        stored."""
        if "transient" not in self.batch.schema.names:
            return np.zeros(self.batch.num_rows, dtype=np.bool_)
        flags = self.batch.column("transient").fill_null(fill_value=False)
        return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def matched(self, selector: str) -> Bools:
        """Return the mask of the rows that match the selector of a join."""
        mask = self._masks.get(selector)
        if mask is None:
            mask = self._masks[selector] = self._match(selector)
        return mask

    def _match(self, selector: str) -> Bools:
        """Return the mask of the rows that a selector matches; an empty selector matches all."""
        if not selector:
            return np.ones(self.batch.num_rows, dtype=np.bool_)
        if self._frame is None:
            stamped = stamp(self.batch, self.span, self._now_us)
            self._frame = EventFrame(stamped, self._now_us, self._messages, outcomes=self.outcomes)
        mask = selector_of(selector).mask_in(self._frame)
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def stopped(self, destination: str) -> Bools | None:
        """Return the mask of the rows that may not be copied to ``destination``, because of a loop
        or too many hops (SEM L2); None if all may."""
        if self.too_far is None or destination not in self._passed_stores:
            return self.too_far
        been = path_contains(self.batch, destination).to_numpy(zero_copy_only=False)
        return np.asarray(self.too_far | been, dtype=np.bool_)


def copies(
    realm: RealmState,
    channel_id: int,
    span: Span,
    bodies: Sequence[Body],
    *,
    publisher: str,
    reached: ReachedStores | None,
    now_us: int,
) -> Iterator[FollowingPublish]:
    """Yield the publishes with which the joins of a channel copy the events of one publish.

    The caller must carry out each publish, with all its consequences, before it advances this
    generator: an event that has reached a store by then is not copied there again.
    """
    joins = realm.directory.joins.copying_from(channel_id)
    if not joins:
        return
    channel = realm.channels[channel_id]
    name = channel.state.name
    if reached is None:  # not copies: each row is its own root, and has reached this store only
        reached = ReachedStores(np.arange(span.size), {name: np.ones(span.size, dtype=np.bool_)})
    candidates = _candidates(span, bodies, reached, now_us=now_us, messages=messages_of(channel))
    for join in joins:
        copied: list[Body] = []
        roots: list[Rows] = []
        for candidate in candidates:
            row_mask = _rows_to_copy(realm, join, candidate, reached=reached)
            if row_mask.any():
                ids = np.arange(candidate.span.first, candidate.span.end, dtype=np.int64)[row_mask]
                rows = pa.array(row_mask)
                outcomes = candidate.outcomes
                known_outcomes = None if outcomes is None else outcomes.chosen(rows)
                batch = for_join(candidate.batch.filter(rows), ids, now_us, store=name)
                copied.append(body_from(batch, known_outcomes))
                roots.append(candidate.roots[row_mask])
        if not copied:
            continue
        copied_roots = np.concatenate(roots)
        reached.add(realm.channels[join.destination].state.name, copied_roots)
        realm.joined(join).copied += len(copied_roots)
        yield FollowingPublish(
            join.destination, copied, publisher, reached=reached.of_copies(copied_roots)
        )
        if join.leads_out:  # after the yield, so that the sender finds the copies
            realm.copied_out()


def _candidates(
    span: Span,
    bodies: Sequence[Body],
    reached: ReachedStores,
    now_us: int,
    messages: MessageAccess | None,
) -> list[CopyCandidates]:
    """Return the published bodies, each with its ids and the stores that its events were in
    before."""
    candidates = []
    first = span.first
    for body in bodies:
        part = Span(first, first + body.batch.num_rows)
        roots = reached.roots[part.first - span.first : part.end - span.first]
        candidates.append(CopyCandidates(body, part, roots, now_us=now_us, messages=messages))
        first = part.end
    return candidates


def _rows_to_copy(
    realm: RealmState, join: Join, candidate: CopyCandidates, reached: ReachedStores
) -> Bools:
    """Return the mask of the rows that the join copies."""
    row_mask = candidate.matched(join.selector)
    if not row_mask.any():
        return row_mask
    # Rows that match but may not be copied are counted, so that operators see the loop.
    name = realm.channels[join.destination].state.name
    stopped = candidate.stopped(name)
    if join.leads_out:
        stopped = candidate.passing if stopped is None else stopped | candidate.passing
    if stopped is not None and (dropped := int(np.count_nonzero(row_mask & stopped))):
        realm.joined(join).dropped += dropped
        row_mask = row_mask & ~stopped
    if not join.archive:  # an archive keeps each copy (SEM L3)
        row_mask = row_mask & ~reached.has(name, candidate.roots)
    return row_mask


def refuse_when_full(state: RealmState, channel_id: int) -> None:
    """Raise ``CapacityReached`` if a publish on this channel would be copied into an outbox that is
    full (SEM N9)."""
    directory = state.directory
    if not directory.joins.by_outbox:
        return
    reached = None
    for join in directory.joins.by_outbox.values():
        waiting = state.waiting_bytes(join.destination)
        if join.ending or waiting < directory.rules.outbox_bytes_max:
            continue
        reached = directory.joins.reached_from(channel_id) if reached is None else reached
        if join.destination in reached:
            target = state.channels[join.destination].state.name
            raise CapacityReached(
                f"the outbox of the join from {join.source_name} to {target} is full: {waiting:,} "
                f"bytes wait for the cluster (limit: cluster.outbox_bytes_max); publish again when "
                f"the cluster has stored some of them, or delete the join"
            )
