"""Random lives of a durable's seats over many owners, beside a model of one list."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import Sweep
from penstock_core.messages.seats import AwaitSeats, Detach, GiveUpSeats, TakeSeat
from penstock_core.messages.settlements import Ack
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, publish, span
from tests.thorough import examples

SESSIONS = ("a", "b", "c")
REATTACH_MS = 1_000
STEP_MS = REATTACH_MS // 20


class SeatsModel:
    """The expected seats: sessions in the order in which they came, and which of them are
    connected."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seats: list[str] = []
        self.connected: dict[str, int] = {}
        """Connected sessions, with their subscriptions."""
        self.waited_ms: dict[str, int] = {}
        """Milliseconds that all owners have waited for each absent session."""
        self.waits_from_ms: int | None = None
        self.refuses_reconnects = False

    @property
    def away(self) -> list[str]:
        return [session for session in self.seats if session not in self.connected]

    def wait(self, now_ms: int) -> None:
        """Count what is over of the waiting, in steps, and begin the next one."""
        if self.waits_from_ms is not None:
            most = max((self.waited_ms.get(session, 0) for session in self.away), default=0)
            passed_ms = now_ms - self.waits_from_ms
            if passed_ms >= min(STEP_MS, REATTACH_MS - most):
                self.waits_from_ms = None
                for session in self.away:
                    self.waited_ms[session] = self.waited_ms.get(session, 0) + passed_ms
                    if self.waited_ms[session] >= REATTACH_MS:
                        self.leave(session)
        if not self.away:
            self.waits_from_ms = None
        elif self.waits_from_ms is None and not self.refuses_reconnects:
            self.waits_from_ms = now_ms

    def leave(self, session: str) -> None:
        self.seats.remove(session)
        self.waited_ms.pop(session, None)

    def is_refused(self, session: str) -> bool:
        others = [session_ for session_ in self.seats if session_ != session]
        return self.kind == "exclusive" and bool(others or session in self.connected)

    def may_be_served(self) -> set[str]:
        """Return the sessions one of which may receive the next event."""
        match self.kind:
            case "priority":
                return set(self.seats[:1]) & self.connected.keys()
            case "serial" if self.away:
                return set()
            case _:
                return set(self.connected)


class SeatsLife:
    def __init__(self, kind: str, random: Random) -> None:
        everywhere = replace(rules(), is_cluster=True, reattach_us=REATTACH_MS * 1_000)
        definition = Definition(type="persistent", cluster_wide=True)
        self.random = random
        self.play = Play(ChannelMachine("orders", definition, everywhere))
        self.play.do(AddDurable("d", kind))
        self.model = SeatsModel(kind)
        self.now_ms = 0
        self.subscription = 0
        self.confirmed: set[int] = set()
        self.held: dict[int, list[int]] = {}

    def do(self, command: Command) -> None:
        """Do it, with the time that has passed; look at what is delivered, and to whom."""
        self.model.wait(self.now_ms)
        self.watch(delivered(self.play.do(command)))

    def watch(self, got: dict[int, list[int]]) -> None:
        by_subscription = {number: session for session, number in self.model.connected.items()}
        for subscription, ids in got.items():
            assert by_subscription[subscription] in self.model.may_be_served()
            assert not self.confirmed.intersection(ids), "confirmed, and delivered again"
            holders = [number for number, held in self.held.items() if held]
            assert holders in ([], [subscription]), "two clients hold events at once"
            self.held.setdefault(subscription, []).extend(ids)
            assert self.held[subscription] == sorted(self.held[subscription])

    def attach(self) -> None:
        session, model = self.random.choice(SESSIONS), self.model
        if session in model.connected:
            return
        self.do(Sweep())
        self.subscription += 1
        command = TakeSeat("d", self.subscription, session, place=session)
        if model.is_refused(session):
            with pytest.raises(DurableInUse):
                self.do(command)
            return
        if session not in model.seats:
            model.seats.append(session)
        model.connected[session] = self.subscription
        model.waited_ms.pop(session, None)
        self.do(command)

    def leave(self) -> None:
        """In order, or with the connection."""
        if self.model.connected:
            self.do(Sweep())
            session = self.random.choice(sorted(self.model.connected))
            self.model.leave(session)
            self.end(session, comes_back=False)

    def end(self, session: str, *, comes_back: bool) -> None:
        subscription = self.model.connected.pop(session)
        self.held.pop(subscription, None)
        self.do(Detach(subscription, comes_back))

    def send_away(self) -> None:
        """The realm ends all connections, and takes none for a while."""
        self.do(Sweep())
        if not self.model.connected:
            return
        self.model.waits_from_ms, self.model.refuses_reconnects = None, True
        for session in sorted(self.model.connected):
            self.end(session, comes_back=True)
        self.wait()
        self.model.refuses_reconnects = False
        self.do(AwaitSeats())
        self.do(Sweep())

    def take_over(self) -> None:
        by_snapshot = self.random.random() < 0.5
        (self.play.restart_from_snapshot if by_snapshot else self.play.restart)()
        self.held, self.model.connected, self.model.waits_from_ms = {}, {}, None

    def unbind(self) -> None:
        self.do(Sweep())
        for session in self.model.away:
            self.model.leave(session)
        self.do(GiveUpSeats("d"))

    def publish(self) -> None:
        self.do(publish(self.random.randint(1, 3)))

    def acknowledge(self) -> None:
        for subscription, ids in list(self.held.items()):
            if ids:
                done = ids.pop(0)
                self.confirmed.add(done)
                self.do(Ack(subscription, (span(done),)))

    def wait(self) -> None:
        ms = self.random.choice((1, STEP_MS, REATTACH_MS // 2, REATTACH_MS - 1, REATTACH_MS))
        self.now_ms += ms
        self.play.wait(ms)
        self.do(Sweep())

    def live(self, steps: int) -> None:
        """Execute ``steps`` random steps."""
        may_be = [self.attach, self.attach, self.attach, self.leave, self.send_away, self.unbind]
        may_be += [self.publish, self.publish, self.acknowledge, self.acknowledge, self.acknowledge]
        may_be += [self.take_over, self.take_over, self.wait]
        for _ in range(steps):
            self.random.choice(may_be)()


@pytest.mark.spec("N6")
@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial"])
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_seats_stay_with_their_sessions_over_many_owners(kind: str, seed: int) -> None:
    SeatsLife(kind, Random(seed)).live(60)
