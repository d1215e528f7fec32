"""Faults of the network's connections, and of the machines at their ends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import msgspec

from penstock_core.api.subscriptions import Settle
from penstock_core.wire.native.frames import PREFACE, PREFIX_BYTES, FrameReader
from penstock_core.wire.native.tags import TAGS
from penstock_testing.loop import SimLoop, pass_time
from penstock_testing.network import Address, SimNetwork, SimTransport

_SETTLE_TAG = next(tag for tag, kind in TAGS.items() if kind is Settle)
_HELLO_BYTES = (60, 400)
"""A replayed prefix of a connection is about as long as a greeting, or ends within it."""


class NetworkWorld(Protocol):
    """The part of a world that the nemesis uses."""

    @property
    def random(self) -> Random: ...

    @property
    def loop(self) -> SimLoop: ...

    @property
    def network(self) -> SimNetwork: ...

    def note(self, what: str) -> None: ...


class Nemesis:
    """Draws faults of the network, one after the other."""

    def __init__(self, world: NetworkWorld, *realms: Address) -> None:
        """``realms``: addresses that clients connect to."""
        self._world = world
        self._realms = realms
        self.faults: dict[str, Callable[[], None]] = {
            "reset": self._reset,
            "reset for one side": self._reset_one_side,
            "silent for both": self._silence,
            "held up": self._hold,
            "shut": self._shut,
            "greeted again": self._greet_again,
            "slow": self._slow,
            "quick": self._quick,
        }

    async def run(self, for_s: float | None) -> None:
        """Draw faults for this long, or for ever."""
        world, random = self._world, self._world.random
        network = world.network
        network.is_faulty = True
        end_s = None if for_s is None else world.loop.time() + for_s
        while end_s is None or world.loop.time() < end_s:
            await pass_time(random.expovariate(2))
            if network.is_shut:
                network.shut(shut=False)
                world.note("network: open")
                continue
            names = sorted(self.faults)
            weights = [1 if name == "shut" else 4 for name in names]
            self.faults[random.choices(names, weights)[0]]()
            if network.is_shut:
                await pass_time(random.expovariate(1 / 3))
        network.heal()
        network.lag_s = 0.001
        world.note("network: healed")

    def _pick(self) -> tuple[SimTransport, SimTransport] | None:
        connections = self._world.network.connections()
        return self._world.random.choice(connections) if connections else None

    def _note(self, what: str, end: SimTransport | None = None) -> None:
        about = f", {end.machine}" if end is not None else ""
        self._world.note(f"network: {what}{about}")

    def _reset(self) -> None:
        if pair := self._pick():
            self._note("reset", pair[0])
            for end in pair:
                end.reset()

    def _reset_one_side(self) -> None:
        """Reset one side; the other notices when it sends something, or never."""
        if pair := self._pick():
            reset_end, silent_end = self._world.random.sample(pair, 2)
            silent_end.is_silent = reset_end.is_silent = self._world.random.random() < 0.5
            self._note("reset for one side", reset_end)
            reset_end.reset()

    def _silence(self) -> None:
        if pair := self._pick():
            self._note("silent", pair[0])
            for end in pair:
                end.is_silent = True

    def _hold(self) -> None:
        """Delay everything that one end sends, sometimes for longer than its peer waits."""
        if pair := self._pick():
            end = self._world.random.choice(pair)
            for_s = self._world.random.choice((0.2, 2.0, 7.0, 40.0)) * self._world.random.random()
            end.held_until_s = self._world.loop.time() + for_s
            self._note(f"held up, for {for_s:.3f} s", end)

    def _shut(self) -> None:
        self._note("shut")
        self._world.network.shut(shut=True)

    def _greet_again(self) -> None:
        """Send the first bytes of a connection again after its client has given it up."""
        if pair := self._pick():
            sent = bytes(pair[0].said[: self._world.random.randint(*_HELLO_BYTES)])
            if pair[0].machine.startswith("steady") and self._world.random.random() < 0.5:
                # the whole stream with its publishes, which must be stored only once
                sent = bytes(pair[0].said)
            if pair[0].machine.startswith("seat-"):
                # a seek may have offered the settled events again, so that repeating it would be
                # right
                sent = _before_settlements(sent)
            self._note(f"greeted again, {len(sent)} bytes", pair[0])
            realms = self._realms
            address = realms[0] if len(realms) == 1 else self._world.random.choice(realms)
            self._world.network.replay(sent, address)

    def _slow(self) -> None:
        self._world.network.lag_s = self._world.random.choice((0.01, 0.05))
        self._note("slow")

    def _quick(self) -> None:
        self._world.network.lag_s = 0.001
        self._note("quick")


def _before_settlements(sent: bytes) -> bytes:
    """Return the bytes before the first frame that settles events."""
    frames, end = FrameReader(preface=PREFACE), len(PREFACE)
    frames.receive(sent)
    for header, body in frames.frames():
        if msgspec.msgpack.decode(header)[0] == _SETTLE_TAG:
            return sent[:end]
        end += PREFIX_BYTES + len(header) + len(body)
    return sent
