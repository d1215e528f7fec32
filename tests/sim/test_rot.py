"""Disks that rot between two lives. One of them again: ``make sim SEED=4711 ARGS=--rot``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.columns.segments import SegmentReader
from penstock.storage.embedded import frames, journal
from penstock.storage.embedded.page_files import PageFiles
from tests.sim.rot import rot_of

SOON = [range(4)]
LATER = [
    pytest.param(range(n, n + 20), marks=pytest.mark.slow, id=f"{n}-{n + 19}")
    for n in range(0, 60, 20)
]
SEEDS_MAX = 60


@pytest.mark.spec("S1")
@pytest.mark.parametrize("seeds", [*SOON, *LATER], ids=str)
def test_damage_is_found_and_told_and_all_the_rest_is_served(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try:
            rot_of(seed, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--rot")
            raise


def _unchecked_segments(monkeypatch: pytest.MonkeyPatch) -> str:
    def read(reader: SegmentReader, number: int) -> pa.RecordBatch:
        place = reader.index.batches[number]
        message = reader._buffer.slice(place.offset, place.length)
        return pa.ipc.read_record_batch(message, reader._schema)

    monkeypatch.setattr(SegmentReader, "_verified", read)
    return "segments"


def _unchecked_pages(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(PageFiles, "_fault", lambda *_: "")
    return "pages"


def _unchecked_journal(monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (frames, journal):
        monkeypatch.setattr(module, "is_whole", lambda *_: True)
    return "journal"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [_unchecked_segments, _unchecked_pages, _unchecked_journal])
def test_a_realm_that_trusts_its_bytes_is_caught(
    spoil: Callable[[pytest.MonkeyPatch], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = spoil(monkeypatch)

    assert _complaint(part, tmp_path)


def _complaint(part: str, directory: Path) -> str:
    """What first goes wrong; a changed event, or bytes that are no events any more."""
    for seed in range(SEEDS_MAX):
        try:
            rot_of(seed, directory / str(seed), part)
        except Exception as error:  # noqa: BLE001  whatever it is, it was noticed
            return repr(error)
    return ""
