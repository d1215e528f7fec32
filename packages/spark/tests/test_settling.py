"""Python processes of Spark's do not look at what they have imported for garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from penstock_spark.session.settling import settle_down
from tests.frozen_heap import nothing_frozen


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")
    with nothing_frozen():
        yield monkeypatch


@pytest.mark.slow
def test_a_worker_keeps_what_it_has_imported_out_of_its_collections(
    worker: pytest.MonkeyPatch,
) -> None:
    worker.setitem(sys.modules, "imported_first", ModuleType("imported_first"))
    settle_down()
    settled = gc.get_freeze_count()
    made = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
    settle_down()

    assert settled > len(sys.modules)
    assert gc.get_freeze_count() <= settled
    worker.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
    settle_down()
    assert gc.get_freeze_count() >= settled + len(made)


def test_other_processes_collect_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_BUFFER_SIZE", raising=False)
    monkeypatch.setitem(sys.modules, "imported_here", ModuleType("imported_here"))

    with nothing_frozen():
        settle_down()

        assert gc.get_freeze_count() == 0
