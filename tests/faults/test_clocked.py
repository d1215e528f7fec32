"""The clock of a server under faults is the one that the test sets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock_server.runtime.writer.clock import SystemClock
from tests.faults.clocked import set_offset, shift

HOUR_US = 3_600_000_000


def test_a_clock_goes_by_the_offset_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock.__init__, "__defaults__", SystemClock.__init__.__defaults__)
    set_offset(tmp_path / "clock", 0)
    shift(tmp_path / "clock")
    clock = SystemClock()
    before_us = clock.now_us()

    set_offset(tmp_path / "clock", HOUR_US * 1_000)

    assert before_us <= time.time_ns() // 1_000
    assert clock.now_us() >= before_us + HOUR_US
    assert clock.steady_us() < before_us
