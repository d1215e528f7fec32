"""Compares a channel with its model, effect by effect."""

from __future__ import annotations

from itertools import chain, groupby

from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec.structs import replace

from penstock_core.channel.delivery_state import Selected, delivery_runs
from penstock_core.channel.retention import COARSE_US
from penstock_core.durable.durable import Durable
from penstock_core.durable.grant_times import RESOLUTION_US
from penstock_core.durable.seat import DEALT_MAX
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.kinds import Command
from penstock_core.vocabulary.delivery_runs import STORED_STATES, DeliveryPlace, DeliveryRun
from penstock_core.vocabulary.effects import Deliver, Effect, Recall, ReportEnd
from penstock_testing.play import Play, events
from tests.model.channel_model import ChannelModel, Ledger, Reader, Seat, lane_of


def by_when(now_us: int, time_ms: int) -> int:
    """Return the time in ``time_ms``, rounded up to a hundredth of the duration."""
    grain_us = time_ms * 10
    return -(-(now_us + time_ms * 1_000) // grain_us) * grain_us


class Compared(RuleBasedStateMachine):
    """The checks of what channel and model must agree on after each step."""

    play: Play
    model: ChannelModel
    is_exact: bool
    """Whether a restart must restore all counters exactly, because none was only in memory."""

    # --- comparing -----------------------------------------------------------------------

    def do(self, command: Command) -> None:
        self.watch(self.play.do(command))

    def settle_time(self) -> None:
        """Bring both sides up to date: remove what is due, and deliver what that makes room for."""
        self.play.sweep()
        while self.play.channel.state.overdue:  # dead events move in steps
            assert not self.play.offers(), "nothing goes out while expired events are there"
            self.play.sweep()
        self.model.expire(self.play.now_us)
        self.model.time_out(self.play.now_us)
        self.model.consume()
        self.watch([*self.play.channel.recalls(), *self.play.offers()])

    def watch(self, effects: list[Effect]) -> None:
        self.model.expire(self.play.now_us)
        for effect in self.one_by_one(effects):
            match effect:
                case Deliver(subscription, spans):
                    ids = [i for part in spans for i in range(*part)]
                    if subscription in self.model.seats:
                        self.served_in_turn(subscription)
                        self.granted(self.model.seats[subscription], ids, effect)
                    else:
                        self.read(self.model.readers[subscription], ids)
                case ReportEnd(subscription):
                    reader = self.model.readers.pop(subscription, None)
                    if reader is not None:
                        assert reader.stop is not None, "only a browse ends"
                        assert not [
                            i for i in self.model.stored if reader.cursor <= i < reader.stop
                        ], "a browse ended early"
                    else:
                        assert self.model.seats[subscription].demand == 0, "met too early"
                case Recall(subscription, spans):
                    assert set(events(spans)) == self.model.recalls.pop(subscription)
                case _:
                    raise AssertionError(f"no such effect: {effect}")
        assert not self.model.recalls, "somebody was not told"
        self.nothing_is_held_back()
        self.model.gone_by()
        self.play.sweep()
        self.catch_up()
        self.model.consume()

    def one_by_one(self, effects: list[Effect]) -> list[Effect]:
        """Return each delivery separately in shares with few events (SEM D8)."""
        sorted_effects: list[Effect] = []
        for durable, together in groupby(effects, self._durable_of):
            group = list(together)
            firsts = [part.first for one in group if isinstance(one, Deliver) for part in one.spans]
            if durable is not None and firsts != sorted(firsts):
                group = sorted(chain.from_iterable(map(_singles, group)), key=_first)
            sorted_effects += group
        return sorted_effects

    def _durable_of(self, effect: Effect) -> str | None:
        if isinstance(effect, Deliver) and effect.subscription in self.model.seats:
            durable = self.model.seats[effect.subscription].durable
            return None if self.model.durables[durable].lanes else durable
        return None

    def served_in_turn(self, subscription: int) -> None:
        """Check that the subscription is one that may be served next (SEM D8, D10, D12)."""
        durable = self.model.seats[subscription].durable
        allowed = self.model.may_be_served(durable)
        assert subscription in allowed, "it may not be served now"
        ledger = self.model.durables[durable]
        if ledger.knows_turn and not ledger.lanes:  # with lanes: subscriptions with room and a lane
            assert subscription == allowed[0], "it is another one's turn"
        ledger.turn.remove(subscription)
        ledger.turn.append(subscription)

    def granted(self, seat: Seat, ids: list[int], effect: Deliver) -> None:
        ledger = self.model.durables[seat.durable]
        ready = self.model.ready_for(seat)
        if ledger.lanes:  # others are served in the same round: the first of each of its lanes
            mine = {*map(lane_of, ids)}
            ready = [i for i in ready if lane_of(i) in mine]
        assert ids == ready[: len(ids)], "not the lowest that are ready"
        counts = {
            i: n for n, spans in effect.redeliveries for s in spans for i in range(*s) if i in ids
        }
        assert counts == {i: ledger.counts[i] for i in ids if i in ledger.counts}
        assert len(ids) <= seat.credit, "more than the window has room for"
        seat.held |= set(ids)
        seat.got_us |= dict.fromkeys(ids, self.play.now_us)
        if seat.timeout_ms:
            until_us = by_when(self.play.now_us, seat.timeout_ms)
            seat.until |= dict.fromkeys(set(ids) & ledger.due, until_us)
        seat.was_served = True
        if seat.demand is not None:
            seat.demand -= len(ids)

    def read(self, reader: Reader, ids: list[int]) -> None:
        held_events = {**self.model.stored, **self.model.passing}
        if reader.stop is None:
            held_events.update(self.model.leaving)
        due = sorted(i for i in held_events if i >= reader.cursor)
        assert ids == due[: len(ids)], "a gap, a repeat, or an event that is gone"
        reader.credit -= len(ids)
        assert reader.credit >= 0
        reader.cursor = ids[-1] + 1

    def catch_up(self) -> None:
        """Check that readers with credit have received everything up to the end of the channel."""
        for subscription, subscriber in self.play.channel.state.subscribers.items():
            reader = self.model.readers[subscription]
            assert subscriber.cursor >= reader.cursor
            reader.cursor = subscriber.cursor

    def nothing_is_held_back(self) -> None:
        for durable in self.model.durables:
            for subscription in self.model.may_be_served(durable):
                seat = self.model.seats[subscription]
                assert not self.model.ready_for(seat), "a seat that may be served waits"
        for reader in self.model.readers.values():
            if reader.credit > 0:
                stop = reader.stop or 1 << 60
                ids = [*self.model.stored, *self.model.passing]
                ids += self.model.leaving if reader.stop is None else []
                assert not [i for i in ids if reader.cursor <= i < stop]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        state, model = self.play.channel.state, self.model
        if not state.expired(self.play.now_us):
            assert set(state.stored) == set(model.stored)
            for name, ledger in model.durables.items():
                durable = state.durables[name]
                spans = durable.outstanding_spans(state.stored)
                assert {i for s in spans for i in range(*s)} == ledger.due
                assert durable.outstanding_count(state.stored) == len(ledger.due)
                assert durable.redelivered_count == len(ledger.counts)
                assert set(durable.rolled_back) == ledger.rolled_back
                self.waits_as_long(durable, ledger)
                assert durable.attributes.strict_order == ledger.strict
                assert durable.attributes.order_by == ("k" if ledger.lanes else "")
                self.hands_hold_what_comes_first(name)
            self.delivery_states_are_the_models()
            self.what_left_is_accounted_for()
        assert set(state.durables) == set(model.durables)
        assert state.counters.published == len(state.stored) + state.counters.departed_count

    def waits_as_long(self, durable: Durable, ledger: Ledger) -> None:
        """Check the delays of rolled-back events (SEM D18). Delays that are over are forgotten in
        the next step."""
        expected = [] if durable.waiting is None else durable.waiting.by_time()
        waits = {i: until_us for until_us, ids in expected for i in ids}
        assert {i: us for i, us in waits.items() if us > self.play.now_us} == {
            i: us for i, us in ledger.waits.items() if us > self.play.now_us
        }
        wakes_us = self.play.channel.state.wakes_us
        assert not ledger.waits or 0 < wakes_us <= min(ledger.waits.values())
        for seat in self.model.seats.values():
            in_time = [us for i, us in seat.until.items() if i in seat.held]
            assert not in_time or 0 < wakes_us <= min(in_time), "nobody looks in time"

    def delivery_states_are_the_models(self) -> None:
        """Check the state of every event at every durable (SEM D23), which is read in pages of a
        few rows."""
        rows_max = 3
        states: list[tuple[str, int]] = []
        place: DeliveryPlace | None = DeliveryPlace("", 0)
        while place is not None:
            selected = Selected(None, frozenset(STORED_STATES), rows_max)
            runs, place = delivery_runs(self.play.channel.state, selected, place, self.play.now_us)
            assert sum(run.span.size for run in runs) <= rows_max
            for run in runs:
                for event_id in range(*run.span):
                    states.append((run.durable, event_id))
                    self.is_in_the_models_state(run, event_id)

        assert states == sorted(
            (name, i) for name in self.model.durables for i in self.model.stored
        )

    def is_in_the_models_state(self, run: DeliveryRun, event_id: int) -> None:
        ledger, now_us = self.model.durables[run.durable], self.play.now_us
        if event_id not in ledger.due:
            assert run == DeliveryRun(run.span, run.durable, "acknowledged")
            return
        seats = self.model.seats_of(run.durable).values()
        holder = next((seat for seat in seats if event_id in seat.held), None)
        counted = ledger.counts.get(event_id, 0) + (holder is not None)
        assert run.deliveries == (None if ledger.is_cumulative else counted)
        assert run.client == (None if holder is None else holder.session)
        until_us = ledger.waits.get(event_id, 0)
        if holder is not None:
            assert run.state == "in_flight"
            assert run.lease_end_us == (holder.until.get(event_id) if holder.timeout_ms else None)
            since_us, resolution_us = holder.got_us[event_id], RESOLUTION_US
        else:
            # A delay that is over is forgotten with the next step.
            assert run.state == ("delayed" if until_us > now_us else "ready") or (
                0 < until_us <= now_us
            )
            assert run.delayed_until_us == (until_us if run.state == "delayed" else None)
            since_us = self.model.stored[event_id].at_us
            resolution_us = max(COARSE_US, self.model.ttl_ms)
        assert run.since_us is not None
        assert since_us - resolution_us < run.since_us <= since_us

    def hands_hold_what_comes_first(self, name: str) -> None:
        """Check that the events in flight are the first outstanding ones, with lanes the first of
        each lane, and that one client has them (strict order and lanes, SEM D11). Only events in
        flight can be acknowledged, so none can be acknowledged before an earlier one."""
        if any(seat.sole for seat in self.model.seats_of(name).values()):
            return  # any of its events may be next
        ledger = self.model.durables[name]
        held = self.model.in_hands(name) & ledger.due
        ready = {*self.model.ready(name), *ledger.waits}
        for waiting in ready if ledger.strict or ledger.lanes else ():
            assert not [i for i in held if ledger.follows(i, waiting)]
        if ledger.lanes:
            hands = [{*map(lane_of, seat.held)} for seat in self.model.seats_of(name).values()]
            assert len(set().union(*hands)) == sum(map(len, hands)), "a lane has two owners"

    def what_left_is_accounted_for(self) -> None:
        """Check the fate of each removed event, and all counters (SEM T6, T8)."""
        state, model = self.play.channel.state, self.model
        for one in self.play.removed:
            dead = set(events(one.dead))
            for event_id in events(one.spans):
                assert model.fates[event_id] == (one.cause, event_id in dead), event_id
        self.play.removed.clear()
        if self.is_exact:
            assert state.counters == replace(model.gone, redelivered=model.redelivered)

    @invariant()
    def a_restart_would_lose_nothing(self) -> None:
        """Check that the recorded facts, and also a snapshot, lead to the same state."""
        if not hasattr(self, "model"):
            return
        twin = Play(self.play.channel)
        twin.definition, twin.recorded = self.play.definition, list(self.play.recorded)
        twin.restart()
        kept = self.play.channel.state.stored.copy()
        kept.remove_all(self.play.channel.state.volatile)
        assert twin.channel.state.stored == kept
        for name, durable in twin.channel.state.durables.items():
            mine = IdSet(
                self.play.channel.state.durables[name].outstanding_spans(
                    self.play.channel.state.stored
                )
            )
            assert IdSet(durable.outstanding_spans(kept)) == mine.overlap(kept)
            rolled_back = self.play.channel.state.durables[name].rolled_back
            assert durable.rolled_back == rolled_back.overlap(kept)
            waiting = self.play.channel.state.durables[name].waiting
            late = IdSet() if waiting is None else waiting.ids.overlap(kept)
            again = IdSet() if durable.waiting is None else durable.waiting.ids.copy()
            without_late = again.copy()
            without_late.discard_all(late)
            assert late == again.overlap(late), "a restart would shorten a wait"
            assert not [
                until_us
                for until_us, ids in (
                    durable.waiting.by_time(without_late) if durable.waiting else ()
                )
                if until_us > self.play.now_us
            ], "a restart would have an event wait that does not"


def _singles(effect: Effect) -> list[Effect]:
    """Yield the events of a share that was dealt event by event as separate deliveries, and other
    runs of ids unchanged."""
    assert isinstance(effect, Deliver), "only deliveries are dealt"
    ids = events(effect.spans)
    if len(ids) > DEALT_MAX:
        return [effect]
    again = effect.redeliveries
    return [Deliver(effect.subscription, (Span(i, i + 1),), again) for i in ids]


def _first(effect: Effect) -> int:
    assert isinstance(effect, Deliver), "only deliveries are dealt"
    return effect.spans[0].first
