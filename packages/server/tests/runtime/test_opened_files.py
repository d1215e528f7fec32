"""Actions that read stored events open the files that they read, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from packages.server.tests.runtime.lives import Lives, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.definitions import Storage
from penstock_server.runtime.store.sealed_file import Damage, FilesNotOpen, SealedFile
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.with_files import with_open_files
from penstock_testing.loop import simulated

FILES = 40


def files_of(lives: Lives) -> list[SealedFile]:
    return lives.realm.shard.state.stores[lives.number("kept")].files


def open_files(lives: Lives) -> int:
    return sum(file.is_open for file in files_of(lives))


async def keep_in_files(lives: Lives) -> None:
    """Write a channel of many files, in a realm that has ended."""
    async with lives.life("closed"):
        await lives.create("kept", storage=Storage(events_per_spindle=10))
        await lives.put("kept", *named(*map(str, range(10 * FILES))))
        await lives.sealed("kept")


async def act(lives: Lives, action: Any) -> Any:
    realm = lives.realm
    return await with_open_files(
        realm.shard, realm.dispatch.files, lives.number("kept"), action=action
    )


@simulated
async def test_an_action_opens_the_files_that_it_reads() -> None:
    lives = Lives(sealing=EAGER)
    await keep_in_files(lives)
    async with lives.life():
        runs = 0

        def read(group: Group) -> list[int]:
            nonlocal runs
            runs += 1
            store, ids = group.state.stores[lives.number("kept")], IdSet((Span(95, 105),))
            _, rows = store.read_lowest(ids, 1 << 20, Damage())
            return [part.batch.num_rows for part in rows]

        assert len(files_of(lives)) == FILES
        assert open_files(lives) == 0
        assert sum(await act(lives, read)) == 10
        assert (runs, open_files(lives)) == (2, 2)


@simulated
async def test_scattered_events_leave_the_files_between_them_closed() -> None:
    lives = Lives(sealing=EAGER)
    await keep_in_files(lives)
    async with lives.life():
        spans = (Span(3, 5), Span(200, 201), Span(399, 400))

        def read(group: Group) -> int:
            rows = group.state.stores[lives.number("kept")].read(spans, Damage())
            return sum(part.batch.num_rows for part in rows)

        assert await act(lives, read) == 4
        assert open_files(lives) == 3


@simulated
async def test_files_that_an_action_has_read_stay_open_while_it_reads_more() -> None:
    lives = Lives(sealing=EAGER)
    await keep_in_files(lives)
    async with lives.life():
        lives.realm.dispatch.files.files_max = 2

        def read(group: Group) -> int:
            store = group.state.stores[lives.number("kept")]
            return sum(
                part.batch.num_rows
                for first in range(0, 100, 10)
                for part in store.read((Span(first, first + 10),), Damage())
            )

        assert await act(lives, read) == 100


@pytest.mark.spec("T10")
@simulated
async def test_a_redrive_opens_what_a_step_moves() -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life("closed"):
        await lives.create("again")
        await lives.create("kept", storage=Storage(events_per_spindle=1))
        await lives.put("kept", *[Event(bytes(1 << 20))] * 20)
        await lives.sealed("kept")
    async with lives.life():
        lives.realm.dispatch.files.files_max = 4
        most = 0
        answered = lives.realm.shard.on_answered

        def count() -> None:
            nonlocal most
            most = max(most, open_files(lives))
            answered()

        lives.realm.shard.on_answered = count
        assert open_files(lives) == 0
        done = await lives.realm.redrive("kept", "again", "", dry_run=True)
        assert done.moved == 20
        assert 0 < most <= 8


@simulated
async def test_events_in_a_closed_file_do_not_count_as_damaged() -> None:
    lives = Lives(sealing=EAGER)
    await keep_in_files(lives)
    async with lives.life():
        store, damage = lives.realm.shard.state.stores[lives.number("kept")], Damage()
        with pytest.raises(FilesNotOpen, match="not open: "):
            store.read((Span(0, 5),), damage)
        assert not damage.ids
