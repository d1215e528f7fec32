"""Drives one channel without a loop or a store; the test sets the clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.state import RealmRules
from penstock_core.ids.id_lists import ids_in, listed
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.messages.delivery import AssignLanes
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import EndRelay, Removed, Replaced, Sweep
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.effects import Deliver, Effect, FindLanes, ReportEnd


class Play:
    """A channel and the facts that it recorded, in the order in which a shard stores them."""

    def __init__(self, channel: ChannelMachine, *, now_us: int = 1_700_000_000_000_000) -> None:
        self.channel = channel
        self.now_us = now_us
        self.definition = channel.state.definition
        """The definition at the creation of the channel."""
        self.recorded: list[StoredFact] = []
        """The stored facts, which a restart replays."""
        self.removed: list[Removed] = []
        """All removals in order, including removals that are not recorded."""
        self.lane_of: Callable[[int], Hashable] = lambda event_id: None
        """Returns the lane of an event id, for durables that keep the order of each lane
        (SEM D11)."""
        self.answer: Span | int | None = None
        """The answer to the last command."""

    @property
    def rules(self) -> RealmRules:
        return self.channel.state.rules

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_us += ms * 1_000

    def do(self, command: Command) -> list[Effect]:
        """Execute ``command`` as a group with a single command: sweep, decide, apply, attend,
        sweep, recall, offer. Return the effects.

        Raises ``Refused`` if the channel refuses the command; the sweep before it remains.
        """
        self.sweep()
        self.answer = self._decide(command)
        self.sweep()
        return [*self.channel.recalls(), *self.offers()]

    def step(self, command: Command) -> None:
        """Execute ``command`` as a part of a larger group: effects are offered only after the whole
        group is stored."""
        self.sweep()
        self.answer = self._decide(command)

    def sweep(self) -> None:
        """Remove due events, as a shard does before and after each group. Events that move to a
        dead event store move in one step."""
        if self.channel.needs_sweep(self.now_us):
            self._decide(Sweep())

    def offers(self) -> list[Effect]:
        """Return all due effects, and remove relayed and passing events after them. The result is
        empty while expired events still have to move (SEM T1)."""
        effects: list[Effect] = []
        state = self.channel.state
        while self.channel.has_offers and not state.overdue:
            for effect in self.channel.offer(now_us=self.now_us):
                if isinstance(effect, FindLanes):
                    self._find_lanes(effect)
                else:
                    effects.append(effect)
        # A shard removes relayed and passing events only after the effects, which may still need
        # them.
        if (state.relayed or state.passing or state.leaving) and not state.overdue:
            self._decide(EndRelay())
        return effects

    def _find_lanes(self, effect: FindLanes) -> None:
        """Tell the channel the lanes of events, as a shard does after reading them."""
        lanes: dict[Hashable, list[int]] = {}
        for event_id in events(effect.spans):
            lanes.setdefault(self.lane_of(event_id), []).append(event_id)
        ids: list[int] = []
        ends = []
        for lane in lanes.values():
            ids += lane
            ends.append(len(ids))
        through = effect.spans[-1].end
        command = AssignLanes(effect.durable, through, list(lanes), ends=ends, ids=array("q", ids))
        self.channel.attend(command, self.now_us)

    def restart(self) -> None:
        """Restart: build a new channel from the recorded facts; all other state is lost."""
        self._rebuild()

    def restart_from_snapshot(self) -> None:
        """Restart from a snapshot taken now; later restarts replay later facts after it."""
        snapshot = self.channel.snapshot()
        assert isinstance(snapshot, Restored), "a snapshot is one fact"
        self.recorded = [snapshot, *self.channel.failover_facts()]
        self._rebuild()

    def snapshot(self) -> None:
        """Replace all recorded facts by a snapshot, and continue without a restart."""
        self.recorded = [self.channel.snapshot(), *self.channel.failover_facts()]

    def close(self) -> None:
        """Close the channel in order, and restart."""
        for fact in self.channel.closing():
            self.recorded.append(fact)
            self.channel.apply(fact)
        self._rebuild()

    def _decide(self, command: Command) -> Span | int | None:
        """Execute a command, record its facts, and return its answer."""
        decided = self.channel.decide(command, self.now_us)
        for fact in decided.facts:
            recorded = self.channel.recorded(fact)
            if recorded is not None:
                self.recorded.append(recorded)
            if isinstance(fact, Removed) and fact.cause is Cause.RELAYED:
                if relayed := self.channel.state.relayed.overlap(IdSet(fact.spans)):
                    self.removed.append(Removed(relayed.spans, fact.cause))
            elif isinstance(fact, Removed):
                self.removed.append(fact)
            elif isinstance(fact, Replaced):
                self.removed.append(Removed(ids_in(fact.ids).spans, Cause.REPLACED))
            self.channel.apply(fact)
        if not decided.is_retry:
            self.channel.attend(command, self.now_us)
        return decided.answer

    def _rebuild(self) -> None:
        """Build a new channel from the recorded facts."""
        self.channel = ChannelMachine(self.channel.state.name, self.definition, self.rules)
        for fact in self.recorded:
            self.channel.apply(fact)
        self.channel.recovered()


def publish(count: int = 1, *, superseded: Spans = (), **digest_fields: object) -> Publish:
    """Return a publish of ``count`` small events; ``digest_fields`` are fields of its digest."""
    replaced = listed(IdSet(superseded)) if superseded else b""
    digest = Digest(
        count=count,
        size=100 * count,
        largest=100,
        superseded=replaced,
        **digest_fields,  # type: ignore[arg-type]  # named by the caller
    )
    return Publish(digest)


def span(first: int, last: int | None = None) -> Span:
    """Return the span of the ids ``first`` to ``last``, both inclusive."""
    return Span(first, (first if last is None else last) + 1)


def events(spans: Spans) -> list[int]:
    """Return the ids of ``spans`` as a list."""
    return [event_id for part in spans for event_id in range(*part)]


def delivered(effects: list[Effect]) -> dict[int, list[int]]:
    """Return the ids delivered to each subscription, in order."""
    event_ids: dict[int, list[int]] = {}
    for effect in effects:
        if isinstance(effect, Deliver):
            event_ids.setdefault(effect.subscription, []).extend(events(effect.spans))
    return event_ids


def redelivered(effects: list[Effect]) -> dict[int, int]:
    """Return the redelivery counts of redelivered events, by id."""
    return {
        event_id: count
        for effect in effects
        if isinstance(effect, Deliver)
        for count, spans in effect.redeliveries
        for event_id in IdSet(spans)
    }


def finished(effects: list[Effect]) -> list[int]:
    """Return the subscriptions whose browse has ended or whose demand is met."""
    return [effect.subscription for effect in effects if isinstance(effect, ReportEnd)]
