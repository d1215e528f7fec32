"""What the network does to its connections, and accidents to the machines beyond."""

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
"""A replayed prefix of a connection is about as long as a greeting, or breaks off in it."""


class NetworkWorld(Protocol):
    """Where faults of the network happen."""

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
        """``realms``: where clients come to."""
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
        """For so long, or for ever."""
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
        found = self._world.network.connections()
        return self._world.random.choice(found) if found else None

    def _note(self, what: str, end: SimTransport | None = None) -> None:
        about = f", {end.machine}" if end is not None else ""
        self._world.note(f"network: {what}{about}")

    def _reset(self) -> None:
        if pair := self._pick():
            self._note("reset", pair[0])
            for end in pair:
                end.reset()

    def _reset_one_side(self) -> None:
        """The other learns of it when it says something, or never."""
        if pair := self._pick():
            told, untold = self._world.random.sample(pair, 2)
            untold.is_silent = told.is_silent = self._world.random.random() < 0.5
            self._note("reset for one side", told)
            told.reset()

    def _silence(self) -> None:
        if pair := self._pick():
            self._note("silent", pair[0])
            for end in pair:
                end.is_silent = True

    def _hold(self) -> None:
        """Nothing gets out of one end for a while, longer at times than a peer is patient."""
        if pair := self._pick():
            end = self._world.random.choice(pair)
            for_s = self._world.random.choice((0.2, 2.0, 7.0, 40.0)) * self._world.random.random()
            end.held_until_s = self._world.loop.time() + for_s
            self._note(f"held up, for {for_s:.3f} s", end)

    def _shut(self) -> None:
        self._note("shut")
        self._world.network.shut(shut=True)

    def _greet_again(self) -> None:
        """What began a connection comes once more, when its client has forgotten it."""
        if pair := self._pick():
            said = bytes(pair[0].said[: self._world.random.randint(*_HELLO_BYTES)])
            if pair[0].machine.startswith("steady") and self._world.random.random() < 0.5:
                said = bytes(pair[0].said)  # publishes, too: they are stored once
            if pair[0].machine.startswith("seat-"):
                said = _before_settlements(said)  # a seek may have offered those events again
            self._note(f"greeted again, {len(said)} bytes", pair[0])
            realms = self._realms
            at = realms[0] if len(realms) == 1 else self._world.random.choice(realms)
            self._world.network.replay(said, at)

    def _slow(self) -> None:
        self._world.network.lag_s = self._world.random.choice((0.01, 0.05))
        self._note("slow")

    def _quick(self) -> None:
        self._world.network.lag_s = 0.001
        self._note("quick")


def _before_settlements(said: bytes) -> bytes:
    """The bytes before the first frame that settles events."""
    frames, end = FrameReader(preface=PREFACE), len(PREFACE)
    frames.receive(said)
    for header, body in frames.frames():
        if msgspec.msgpack.decode(header)[0] == _SETTLE_TAG:
            return said[:end]
        end += PREFIX_BYTES + len(header) + len(body)
    return said
