"""Pages with bodies, power cuts and restarts, compared with a dictionary that never fails."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import PageSlot
from penstock_server.storage.embedded import FilePages
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store
from tests.thorough import examples

pytestmark = pytest.mark.slow

Name = tuple[int, PageSlot]

channels = st.integers(1, 3)
bodies = st.lists(
    st.binary(max_size=40) | st.integers(0, 3_000).map(lambda size: b"\xf1" * size), max_size=4
)


class PagesLife(RuleBasedStateMachine):
    """Every body flushed with a sync and not released is there, byte for byte, after any crash."""

    @initialize(seed=st.integers(0, 2**32), page_bytes_max=st.sampled_from([64, 1_000, 1 << 20]))
    def start(self, seed: int, page_bytes_max: int) -> None:
        self.disk = FaultyDisk(seed)
        self.page_bytes_max = page_bytes_max
        self.bodies: dict[Name, bytes] = {}
        self.unsafe: set[Name] = set()
        self.views: list[tuple[memoryview, bytes]] = []
        self.runner = asyncio.Runner()
        self.pages = self.opened(keep_rest=False)

    def opened(self, *, keep_rest: bool) -> FilePages:
        store = open_store(
            "/realm", self.disk, page_bytes_min=64, page_bytes_max=self.page_bytes_max
        )
        for name in self.unsafe:
            self.bodies.pop(name)
        self.unsafe.clear()
        self.views.clear()
        for channel in (1, 2, 3):
            assert self.runner.run(store.pages.check(channel, self.slots_of(channel))) == []
        in_use = {channel: self.slots_of(channel) for channel in (1, 2, 3)}
        self.runner.run(store.pages.restore(in_use, keep_rest=keep_rest))
        return store.pages

    def slots_of(self, channel: int) -> list[PageSlot]:
        return [place for number, place in self.bodies if number == channel]

    @rule(channel=channels, put=bodies, left_out=st.sets(st.integers(0, 3)), sync=st.booleans())
    def put(self, channel: int, put: list[bytes], left_out: set[int], sync: bool) -> None:
        self.runner.run(self.pages.reserve(channel, [len(body) for body in put]))
        for number, body in enumerate(put):
            if number not in left_out:
                name = channel, self.pages.allocate(channel, body)
                assert name not in self.bodies, "a place is one body's"
                self.bodies[name] = body
                self.unsafe.add(name)
        self.runner.run(self.pages.flush(sync=sync))
        if sync:
            self.unsafe.clear()

    @rule(channel=channels, size=st.integers(0, 5_000), room=st.integers(0, 3_000))
    def reserve_on_a_full_disk(self, channel: int, size: int, room: int) -> None:
        before, self.disk.free_bytes = self.pages.info(channel), room
        try:
            self.runner.run(self.pages.reserve(channel, [size]))
        except StorageFailed:
            assert self.pages.info(channel) == before
        finally:
            self.disk.free_bytes = None

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(list(self.bodies)), unique=True))
        for channel in (1, 2, 3):
            self.runner.run(self.pages.release(channel, [p for c, p in names if c == channel]))
        for name in names:
            del self.bodies[name]
            self.unsafe.discard(name)

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def hold_a_view(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.bodies)))
        self.views.append((self.pages.view(*name), self.bodies[name]))

    @rule(channel=channels)
    def drop(self, channel: int) -> None:
        self.runner.run(self.pages.drop(channel))
        for name in [name for name in self.bodies if name[0] == channel]:
            del self.bodies[name]
            self.unsafe.discard(name)

    @rule(keep_rest=st.booleans())
    def lose_power(self, keep_rest: bool) -> None:
        self.disk.power_cut()
        self.pages = self.opened(keep_rest=keep_rest)

    @rule()
    def start_again(self) -> None:
        self.runner.run(self.pages.close())
        self.unsafe.clear()
        self.disk.kill()
        self.pages = self.opened(keep_rest=False)

    @invariant()
    def everything_reads_back(self) -> None:
        for (channel, place), body in self.bodies.items():
            assert self.pages.view(channel, place) == body
        for view, body in self.views:
            assert view == body

    @invariant()
    def the_account_is_right(self) -> None:
        for channel in (1, 2, 3):
            info = self.pages.info(channel)
            assert info.used == sum(place.size for place in self.slots_of(channel)) <= info.size

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()


TestPagesLife = pytest.mark.spec("S1")(PagesLife.TestCase)
TestPagesLife.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
