"""The simulation has teeth: realms known to be bad are caught within a few seeds."""

from __future__ import annotations

import pytest

from penstock.core.ports import Block, DamagedBlock
from penstock.runtime import state
from penstock.runtime.work import Group
from penstock.storage.embedded import FileJournal
from tests.sim.world import life_of

SEEDS_MAX = 25


def complaint() -> str:
    """What an oracle first complains of; empty when none does."""
    complaints: list[str] = []
    for seed in range(SEEDS_MAX):
        try:
            life_of(seed)
        except* AssertionError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            complaints.append(repr(error))
        if complaints:
            break
    return complaints[0] if complaints else ""


def test_a_realm_that_answers_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda _: False, lambda _, __: None)
    monkeypatch.setattr(Group, "must_sync", never, raising=False)

    assert complaint()


def test_a_snapshot_that_forgets_the_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_kept", lambda *_: None)

    assert complaint()


def test_a_recovery_that_drops_the_last_block_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FileJournal.read

    async def short(journal: FileJournal, first: int, limit: int) -> list[Block | DamagedBlock]:
        blocks = await whole(journal, first, limit)
        return [block for block in blocks if block.seq != journal.info().tail]

    monkeypatch.setattr(FileJournal, "read", short)

    assert complaint()
