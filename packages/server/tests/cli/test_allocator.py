"""A server's freed memory goes back to the system: Arrow allocates with jemalloc."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock_server.cli.serving.realm_process import ALLOCATOR, FAILED, run_realm

linux = pytest.mark.skipif(sys.platform != "linux", reason="jemalloc is used on Linux")


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched_logging: None
) -> Callable[[], int]:
    """Starts a realm that ends at once, because its settings file is missing."""
    monkeypatch.setenv(ALLOCATOR, "system")  # so that it is as before after the test
    settings = tmp_path / "missing.toml"
    return partial(run_realm, tmp_path / "data", settings, {"log.format": "json"})


@linux
def test_a_server_has_jemalloc(start: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOCATOR)
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")

    assert start() == FAILED
    assert os.environ[ALLOCATOR] == "jemalloc"


@linux
def test_other_c_libraries_have_no_jemalloc(
    start: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOCATOR)
    monkeypatch.setattr(os, "confstr", lambda _: None)

    assert start() == FAILED
    assert ALLOCATOR not in os.environ


def test_an_allocator_that_is_chosen_stays(start: Callable[[], int]) -> None:
    assert start() == FAILED
    assert os.environ[ALLOCATOR] == "system"
