"""The simulation has teeth: realms known to be bad are caught within a few seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.messages import Appended, Removed
from penstock.core.ports import Block, Buffer, DamagedBlock
from penstock.runtime import realm, state
from penstock.runtime.group import Group
from penstock.runtime.records import Record, TransactionEnded
from penstock.runtime.shard import Shard
from penstock.storage.embedded import FileJournal
from penstock.testing.loop import pass_time
from tests.sim.mutants import MUTANTS
from tests.sim.world import life_of

SEEDS_MAX = 25


def complaint(*scenes: str, seeds: int = SEEDS_MAX) -> str:
    """What an oracle first complains of; empty when none does."""
    complaints: list[str] = []
    for seed in range(seeds):
        try:
            life_of(seed, scenes)
        except Exception as group:  # noqa: BLE001  whatever it is, it was noticed
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            complaints.append(repr(error))
        if complaints:
            break
    return complaints[0] if complaints else ""


def stored_in_two_blocks(
    monkeypatch: pytest.MonkeyPatch, is_late: Callable[[Group, Record], bool]
) -> None:
    """What ``is_late`` says comes a moment after the rest of its group."""
    whole = Shard._append

    async def halves(shard: Shard, group: Group) -> None:
        bodies = iter(group.bodies)
        parts: list[tuple[list[Record], list[Buffer]]] = [([], []), ([], [])]
        for record in group.records:
            records, own = parts[is_late(group, record)]
            records.append(record)
            own += [next(bodies) for ref in record.bodies if ref.place is None]
        for records, own in parts:
            if records:
                group.records, group.bodies = records, own
                await whole(shard, group)
                await pass_time(0.02)

    monkeypatch.setattr(Shard, "_append", halves)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed_within_a_few_lives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, scenes, seeds = MUTANTS[name]
    spoil(monkeypatch)

    assert complaint(*scenes, seeds=seeds)


def test_a_snapshot_that_forgets_the_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_kept", lambda *_: None)

    assert complaint("durables")


def test_a_recovery_that_drops_the_last_block_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FileJournal.read

    async def short(journal: FileJournal, first: int, limit: int) -> list[Block | DamagedBlock]:
        blocks = await whole(journal, first, limit)
        return [block for block in blocks if block.seq != journal.info().tail]

    monkeypatch.setattr(FileJournal, "read", short)

    assert complaint("durables")


@pytest.mark.slow
@pytest.mark.spec("T7")
def test_dead_events_that_leave_after_they_were_moved_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leaves(_: Group, record: Record) -> bool:
        return isinstance(record.fact, Removed) and bool(record.fact.dead)

    stored_in_two_blocks(monkeypatch, leaves)

    assert "dead" in complaint("dead")
    assert complaint("chain")


@pytest.mark.spec("X4")
def test_a_transaction_stored_in_two_blocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def comes_last(group: Group, record: Record) -> bool:
        ended = [each.fact for each in group.records if isinstance(each.fact, TransactionEnded)]
        if not ended:
            return False
        later = {number for end in ended for number, _ in end.ended.spans[1:]}
        return record.channel in later or isinstance(record.fact, TransactionEnded)

    stored_in_two_blocks(monkeypatch, comes_last)

    assert "stored in part" in complaint("transfers")


@pytest.mark.spec("X4")
def test_a_scheduled_event_that_leaves_before_it_is_published_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def arrives(group: Group, record: Record) -> bool:
        due = any(
            isinstance(each.fact, Removed)
            and group.state.channels[each.channel].state.definition.kind == "schedule"
            for each in group.records
            if each.channel
        )
        return due and isinstance(record.fact, Appended)

    stored_in_two_blocks(monkeypatch, arrives)

    assert "was never published" in complaint("scheduled")


@pytest.mark.spec("K1")
def test_a_restart_that_forgets_the_publish_keys_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(realm, "index_keys", nothing)

    assert "at most" in complaint("keyed")


@pytest.mark.slow
@pytest.mark.spec("L1")
def test_a_copy_of_a_join_stored_after_its_event_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_copy(group: Group, record: Record) -> bool:
        return isinstance(record.fact, Appended) and bool(
            group.state.directory.joins.into(record.channel)
        )

    stored_in_two_blocks(monkeypatch, is_copy)

    assert "has no copy" in complaint("joined")
