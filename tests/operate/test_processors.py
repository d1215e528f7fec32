"""The number of processors that the server may use, and its use of them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock_server.serving.lifecycle import linger, processors
from penstock_server.settings import ListenSettings, Settings


def realm() -> Any:
    return SimpleNamespace(shard=SimpleNamespace(linger=None))


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000 100000", 0.5), ("100000 100000\n", 1.0), ("150000 100000", 1.5)]
)
def test_a_container_may_have_only_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(quota)

    assert processors(tmp_path / "cpu.max") == expected


@pytest.mark.parametrize("quota", ["max 100000", "", "100000 0", None])
def test_without_a_quota_it_has_those_that_may_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)

    assert processors(tmp_path / "cpu.max") == 3


def test_where_the_system_tells_nothing_of_it_it_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    assert processors(tmp_path / "cpu.max") == 4


@pytest.mark.parametrize(
    ("count", "linger_us", "stays"), [(2.0, 500, True), (1.5, 500, False), (8.0, 0, False)]
)
def test_a_server_stays_awake_where_its_client_has_a_processor_too(
    count: float, linger_us: int, stays: bool
) -> None:
    settings = replace(Settings(), listen=ListenSettings(linger_us=linger_us))
    served = realm()

    linger(served, settings, count)

    assert (served.shard.linger is not None) == stays
