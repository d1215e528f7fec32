"""A server's freed memory goes back to the system: Arrow allocates with jemalloc."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock_server.cli.serving import realm_process
from penstock_server.cli.serving.realm_process import ALLOCATOR, run_realm

linux = pytest.mark.skipif(sys.platform != "linux", reason="jemalloc is used on Linux")


@pytest.fixture(autouse=True)
def not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realm_process, "_serve", lambda *_: None)
    monkeypatch.setenv(ALLOCATOR, "system")  # so that it is as before after the test


@linux
def test_a_server_has_jemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOCATOR)
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")

    assert run_realm(Path("data"), None, {}) == 0
    assert os.environ[ALLOCATOR] == "jemalloc"


@linux
def test_other_c_libraries_have_no_jemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOCATOR)
    monkeypatch.setattr(os, "confstr", lambda _: None)

    assert run_realm(Path("data"), None, {}) == 0
    assert ALLOCATOR not in os.environ


def test_an_allocator_that_is_chosen_stays() -> None:
    assert run_realm(Path("data"), None, {}) == 0
    assert os.environ[ALLOCATOR] == "system"
