"""A channel as a state machine, with one module for each verb.

``decide`` (``penstock_core.channel.decide``) says what a command leads to, ``apply``
(``penstock_core.channel.apply``) makes a fact true, ``attend`` and ``offer``
(``penstock_core.channel.offer``) follow sessions and say what to send.
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
        """What ``command`` would make happen. Raises ``Refused``; changes nothing."""
        return decide(self.state, command, now_us)

    def apply(self, fact: StoredFact) -> None:
        """Make ``fact`` true. Never fails, never decides: it has already happened."""
        apply(self.state, fact)

    def attend(self, command: Command, now_us: int) -> None:
        """Follow sessions coming and going: soft state, forgotten on restart."""
        offer.attend(self.state, command, now_us)

    def offer(self, below: int | None = None, *, now_us: int = 0) -> Iterator[Effect]:
        """What the shell must do now (of events under ``below``); ask again while
        :attr:`has_offers`. ``now_us`` is when it does."""
        return offer.offer(self.state, below, now_us=now_us)

    def recalls(self) -> list[Recall]:
        """Events that were sent and are recalled (SEM D11), given once. Clients are told when the
        cause is stored, and before it is answered."""
        return offer.recalls(self.state)

    def leave(self, subscription: int) -> None:
        """Offer nothing more to this subscription: its end is on the way here."""
        offer.leave(self.state, subscription)

    def hold_back(self, now_us: int) -> None:
        """Deliver nothing until expired events, which cannot move now, have moved (SEM T1)."""
        self.state.overdue = len(self.state.expired(now_us))

    def gather(self, now_us: int) -> None:
        """Take together what is due by several times: it is asked for in each step in which it
        moves."""
        self.state.ages.gather(self.state.stored, now_us)

    @property
    def has_offers(self) -> bool:
        """Whether there may be something to do for those who are there, or has to move first."""
        state = self.state
        there = state.subscribers or state.seats or state.cancelled
        return state.dirty and bool(there or state.overdue)

    def recorded(self, fact: StoredFact) -> StoredFact | None:
        """The form in which ``fact`` survives a restart; None if it does not. Ask before apply."""
        return recovery.recorded(self.state, fact)

    def mark_ids_used(self, end: int) -> None:
        """Note that ids below ``end`` are in use, whatever the facts so far say."""
        recovery.mark_ids_used(self.state, end)

    def recovered(self) -> None:
        """Finish recovery: all stored facts are applied."""
        recovery.recovered(self.state)

    def clock_set_back(self, last_us: int, now_us: int) -> None:
        """Note that the clock of an earlier start, which last showed ``last_us``, was ahead."""
        recovery.clock_set_back(self.state, last_us, now_us)

    def closing(self) -> tuple[StoredFact, ...]:
        """The facts to store when the realm is closed in order."""
        return recovery.closing(self.state)

    def frozen(self) -> Restored | Generator[None, None, Restored]:
        """The snapshot as of now, or what makes it, piece by piece, later and on any thread."""
        return recovery.frozen(self.state)

    def snapshot(self) -> Restored:
        """The snapshot of this channel, as a restart would find it now."""
        return recovery.snapshot(self.state)

    def kept_places(self) -> tuple[StoredFact, ...]:
        """Facts behind a snapshot that lead to what is kept for clients when another node takes
        over."""
        return (*awaited_seats.kept(self.state), *self.state.places.values())

    def needs_sweep(self, now_us: int) -> bool:
        """Whether a sweep has something to do."""
        return self.state.needs_sweep(now_us)
