"""A channel as a state machine, with one module for each verb.

``decide`` (``penstock_core.channel.decide``) derives facts from a command, ``apply``
(``penstock_core.channel.apply``) makes a fact true, ``attend`` and ``offer``
(``penstock_core.channel.offer``) follow sessions and choose what to send.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from penstock_core.channel import awaited_seats, offer, recovery
from penstock_core.channel.apply import apply
from penstock_core.channel.decide import decide
from penstock_core.channel.decided import Decided
from penstock_core.channel.state import ChannelState, RealmRules
from penstock_core.messages.kinds import Command
from penstock_core.messages.snapshots import Restored
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.effects import Effect, Recall


class ChannelMachine:
    """One channel: its stored ids, its durables and subscribers, and the rules between them."""

    __slots__ = ("state",)

    def __init__(self, name: str, definition: Definition, rules: RealmRules) -> None:
        self.state = ChannelState(name, definition, rules)

    def decide(self, command: Command, now_us: int) -> Decided:
        """Return the facts and the answer of a command, without changing the state. Raises
        ``Refused``."""
        return decide(self.state, command, now_us)

    def apply(self, fact: StoredFact) -> None:
        """Apply a fact to the state. This never fails, because the fact has already happened."""
        apply(self.state, fact)

    def attend(self, command: Command, now_us: int) -> None:
        """Update the soft state (sessions, credit, demand), which a restart forgets."""
        offer.attend(self.state, command, now_us)

    def offer(self, below: int | None = None, *, now_us: int = 0) -> Iterator[Effect]:
        """Return the effects that the shell must perform at ``now_us``, limited to events under
        ``below``. Call it again while :attr:`has_offers`."""
        return offer.offer(self.state, below, now_us=now_us)

    def recalls(self) -> list[Recall]:
        """Return the recalls (SEM D11) since the last call. They are sent to clients after the fact
        that caused them is stored, and before the command that led to it is answered."""
        return offer.recalls(self.state)

    def leave(self, subscription: int) -> None:
        """Stop offering events to this subscription; the command that ends it is on its way."""
        offer.leave(self.state, subscription)

    def hold_back(self, now_us: int) -> None:
        """Deliver no events until the expired events, which cannot move to the dead event store
        now, have moved (SEM T1)."""
        self.state.overdue = len(self.state.expired(now_us))

    def gather(self, now_us: int) -> None:
        """Combine events that expired at several times into one set, because every step that moves
        some of these events reads all such sets."""
        self.state.ages.gather(self.state.stored, now_us)

    @property
    def has_offers(self) -> bool:
        """Whether clients may have to be served, or expired events have to move to the dead event
        store first."""
        state = self.state
        has_clients = state.subscribers or state.seats or state.cancelled
        return state.may_deliver and bool(has_clients or state.overdue)

    def recorded(self, fact: StoredFact) -> StoredFact | None:
        """Return ``fact`` in its stored form; None if it does not survive a restart. Call it before
        ``apply``."""
        return recovery.recorded(self.state, fact)

    def mark_ids_used(self, end: int) -> None:
        """Record that ids below ``end`` are in use, even if no fact so far mentions them."""
        recovery.mark_ids_used(self.state, end)

    def recovered(self) -> None:
        """Finish recovery after all stored facts are applied."""
        recovery.recovered(self.state)

    def clock_set_back(self, last_us: int, now_us: int) -> None:
        """Correct stored times after the clock was set back. ``last_us`` is the last time that the
        clock showed in an earlier run, when it was ahead."""
        recovery.clock_set_back(self.state, last_us, now_us)

    def closing(self) -> tuple[StoredFact, ...]:
        """Return the facts to store when the realm is closed cleanly."""
        return recovery.closing(self.state)

    def frozen(self) -> Restored | Generator[None, None, Restored]:
        """Return the snapshot as of now, or a generator that builds it in steps, later and on any
        thread."""
        return recovery.frozen(self.state)

    def snapshot(self) -> Restored:
        """Return the snapshot of this channel as a restart would read it now."""
        return recovery.snapshot(self.state)

    def failover_facts(self) -> tuple[StoredFact, ...]:
        """Return the facts, written after a snapshot, that restore the seats and subscriptions kept
        for clients during a failover."""
        return (*awaited_seats.kept(self.state), *self.state.places.values())

    def needs_sweep(self, now_us: int) -> bool:
        """Whether a sweep has work to do."""
        return self.state.needs_sweep(now_us)
