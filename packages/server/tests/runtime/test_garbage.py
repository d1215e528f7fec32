"""Work that creates many objects and frees few is not interrupted by garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from packages.server.tests.runtime.lives import LATE, Lives, named
from packages.server.tests.runtime.living import EAGER, living
from penstock_core.columns.events.event import Event
from penstock_core.garbage import FreedMemory, age_all, uncollected
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.ports import Block, DamagedBlock
from penstock_server.runtime.store.records import encode_block
from penstock_server.runtime.store.state import RealmState
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated
from tests.frozen_heap import nothing_frozen


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_python_looks_for_garbage_again_afterwards() -> None:
    gc.enable()

    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()

    assert gc.isenabled()


def test_it_does_so_after_a_failure_too() -> None:
    gc.enable()

    with pytest.raises(RuntimeError), uncollected():
        raise RuntimeError

    assert gc.isenabled()


def test_who_never_looks_is_left_alone() -> None:
    gc.disable()

    with uncollected():
        pass

    assert not gc.isenabled()


def test_loaded_objects_are_not_looked_at_by_the_next_collections() -> None:
    with nothing_frozen():
        with uncollected():
            loaded: list[list[int]] = [[] for _ in range(10_000)]
            age_all()

        assert gc.is_tracked(loaded[0])
        assert gc.get_freeze_count() == 0
        assert len(gc.get_objects(generation=0)) < len(loaded)
        assert any(one is loaded for one in gc.get_objects(generation=2))


def test_objects_that_the_program_has_frozen_stay_frozen() -> None:
    frozen: list[list[int]] = [[] for _ in range(100)]
    gc.freeze()

    age_all()

    # Not the count of frozen objects: it falls when one of another test is released.
    ids = set(map(id, frozen))
    assert not any(id(tracked) in ids for tracked in gc.get_objects())


class NotingJournal(MemoryJournal):
    """Notes at each read whether Python collects garbage."""

    def __init__(self) -> None:
        super().__init__()
        self.collections: list[str] = []

    async def read(self, *args: Any, **more: Any) -> list[Block | DamagedBlock]:
        self.collections.append("on" if gc.isenabled() else "off")
        return await super().read(*args, **more)


@simulated
async def test_a_recovery_is_not_interrupted() -> None:
    journal, blobs = NotingJournal(), MemoryBlobs()
    async with living(journal, blobs, sealing=LATE) as realm:
        await realm.create_channel("orders", Definition(type="persistent"))
    gc.enable()
    journal.collections.clear()
    async with living(journal, blobs, sealing=LATE):
        assert set(journal.collections) == {"off"}
        assert gc.isenabled()


@simulated
async def test_nor_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.enable()
    collections: list[str] = []
    snapshot = RealmState.snapshot

    def take_snapshot(state: RealmState) -> Any:
        collections.append("on" if gc.isenabled() else "off")
        return snapshot(state)

    def encoded(*arguments: Any, **named: Any) -> Any:
        collections.append("on" if gc.isenabled() else "off")
        return encode_block(*arguments, **named)

    monkeypatch.setattr(RealmState, "snapshot", take_snapshot)
    monkeypatch.setattr("penstock_server.runtime.upkeep.snapshot_image.encode_block", encoded)
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *named("a", "b"))
        await lives.realm.snapshot()

        assert collections == ["off", "off"]
        assert gc.isenabled()


@simulated
async def test_memory_of_sealed_events_goes_back_once_little_is_written() -> None:
    given_back: list[int] = []

    class Noting(FreedMemory):
        def give_back(self) -> None:
            given_back.append(self.bytes)

    lives = Lives(sealing=EAGER)
    async with lives.life():
        lives.realm.sealer.freed = Noting(trim_bytes_min=100_000)
        await lives.create("orders", storage=Storage(events_per_spindle=10))
        for _ in range(20):
            await lives.put("orders", *[Event(bytes(10_000))] * 10)
            await pass_time(0.005)
        assert not given_back, "somebody is at work"
        await pass_time(1)

        assert given_back
        assert given_back[0] >= 2_000_000


def test_memory_is_given_back_whatever_the_c_library() -> None:
    freed = FreedMemory()
    freed.bytes = 1 << 30
    freed.give_back()

    assert not freed.bytes
    assert not freed.is_worth_it(0)
