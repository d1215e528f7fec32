"""An adapter that is broken fails the contract: the kits notice every mistake there is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.ports import Blobs, Journal, Registry
from penstock_testing.contracts import (
    BlobsContract,
    JournalContract,
    RegistryContract,
    checks,
    run,
)
from penstock_testing.engine import MemoryEngine
from penstock_testing.engine_contracts import EngineContract, ReopenedJournalContract
from penstock_testing.loop import Deadlock, simulate
from tests.contract import broken_engines as broken
from tests.contract.broken_engines import with_journals, with_registries, with_stores
from tests.contract.fateful import EngineJournalKit, MemoryEngineKit

MISTAKES: dict[type[MemoryEngine], str] = {
    with_journals(broken.StoresNothing): "a_journal_opened_again_has_its_blocks",
    with_journals(broken.ForgetsBlocks): "a_journal_opened_again_has_its_blocks",
    with_journals(broken.ForgetsItsFloor): "a_journal_opened_again_has_its_floor",
    with_journals(
        broken.ForgetsTheNumberOfItsTail
    ): "a_journal_trimmed_to_its_tail_keeps_its_number",
    with_journals(broken.GivesMarksNumbers): "an_empty_journal_opened_again_is_empty",
    with_journals(broken.TakesTornBlocksForWhole): (
        "a_torn_block_is_dropped_and_its_number_is_used_again"
    ),
    with_journals(broken.GivesNoNumberAgain): (
        "a_torn_block_is_dropped_and_its_number_is_used_again"
    ),
    with_journals(broken.DoesNotFence): "an_idle_owner_is_deposed_too",
    with_journals(broken.ComparesNothing): "a_newer_owner_deposes_the_older",
    with_journals(broken.FencesNewerOwners): "an_older_epoch_cannot_open_after_a_newer",
    with_journals(broken.OpensAnEpochOnce): "an_epoch_may_be_opened_again",
    with_journals(broken.CallsTrimmedDamaged): ("a_deposed_owner_reads_blocks_or_raises_trimmed"),
    with_journals(broken.AppendsAgainAtTheNewTail): "an_append_without_an_answer_has_one_outcome",
    with_journals(broken.TakesSilenceForNo): "an_append_without_an_answer_has_one_outcome",
    with_journals(broken.TakesSilenceForYes): "an_append_without_an_answer_has_one_outcome",
    with_journals(broken.TakesItselfForAnother): "an_append_without_an_answer_has_one_outcome",
    with_journals(broken.WaitsForEver): "a_journal_closed_without_an_answer_does_not_know",
    with_journals(broken.LosesTheEndOfLargeBlocks): "blocks_may_be_empty_and_large",
    with_journals(broken.LosesEmptyBlocks): "blocks_may_be_empty_and_large",
    with_journals(broken.ReadsAsMuchAsThereIs): ("a_read_is_limited_in_bytes_but_returns_a_block"),
    with_journals(broken.SaysItIsLocal): "health_and_durability_are_reported",
    broken.BeginsAtOne: "a_journal_begins_at_the_given_number",
    with_journals(broken.ForgetsWhereItBegan): "a_journal_begins_at_the_given_number",
    broken.BeginsAnew: "a_journal_begins_at_the_given_number",
    broken.TakesAnyEpoch: "epochs_and_beginnings_have_bounds",
    broken.HasOneLog: "shards_are_apart",
    broken.HasOneFolder: "shards_are_apart",
    broken.HasARegisterOfItsOwn: "one_of_concurrent_writers_of_a_key_wins",
    with_registries(broken.LastWriterWins): "one_of_concurrent_writers_of_a_key_wins",
    with_registries(broken.DeletesWhateverIsThere): "a_key_is_deleted_only_with_its_version",
    with_registries(broken.LeavesWhatIsDeleted): "a_deleted_key_is_deleted_for_all_nodes",
    with_registries(broken.TakesItsOwnChangeForAnothers): (
        "a_change_without_an_answer_is_made_once"
    ),
    with_registries(broken.TakesAnothersChangeForItsOwn): (
        "a_change_that_came_too_late_is_a_conflict_without_an_answer_too"
    ),
    with_stores(broken.Overwrites): "nodes_see_the_same_blobs_which_do_not_grow",
    with_stores(broken.KeepsDeletedBlobs): "deleted_names_are_free_again",
    with_stores(broken.ListsNoFolders): "a_reader_of_files_does_not_change_them",
    with_stores(broken.WritesIntoFiles): "nodes_see_the_same_blobs_which_do_not_grow",
}
"""Broken engines, and a check that has to notice each."""


class JournalKit(JournalContract):
    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    async def open(self) -> Journal:
        return await self._engine.journal(0, 1)


class BlobsKit(BlobsContract):
    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    async def open(self) -> Blobs:
        return await self._engine.blobs(0)


class RegistryKit(RegistryContract):
    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    async def open(self) -> Registry:
        return await self._engine.registry()


def runs_of(engines: type[MemoryEngine]) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
    """Every check of every kit, on new engines of this class, by its name."""

    class Engines(MemoryEngineKit):
        pass

    class Journals(EngineJournalKit):
        pass

    Engines.engines = Journals.engines = engines
    kits: dict[type[Any], Callable[[], Any]] = {
        EngineContract: Engines,
        ReopenedJournalContract: Journals,
        JournalContract: lambda: JournalKit(engines()),
        BlobsContract: lambda: BlobsKit(engines()),
        RegistryContract: lambda: RegistryKit(engines()),
    }

    def running(make: Callable[[], Any], check: str) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: run(make(), check)

    return {
        check.removeprefix("check_"): running(make, check)
        for kit, make in kits.items()
        for check in checks(kit)
    }


def _passes(check: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    try:
        simulate(check(), Random(1))
    except (AssertionError, PenstockError, LookupError, ValueError, TimeoutError, Deadlock):
        return False
    except ExceptionGroup:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("check", sorted(runs_of(MemoryEngine)))
def test_an_engine_without_a_mistake_passes(check: str) -> None:
    assert _passes(runs_of(MemoryEngine)[check])


@pytest.mark.slow
@pytest.mark.parametrize("engines", MISTAKES, ids=lambda engines: engines.__name__)
def test_a_mistake_is_noticed(engines: type[MemoryEngine]) -> None:
    assert not _passes(runs_of(engines)[MISTAKES[engines]])


@pytest.mark.slow
def test_every_check_of_the_engine_notices_a_mistake() -> None:
    check_names = {
        check.removeprefix("check_")
        for check in [*checks(EngineContract), *checks(ReopenedJournalContract)]
    }
    runs = [runs_of(engines) for engines in MISTAKES]

    assert {check for check in check_names if all(_passes(run[check]) for run in runs)} == set()
