"""Metrics and figures of a node's process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector

from penstock_cluster.nodes.node_state import process_figures


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells them")
def test_figures_of_a_process_are_those_that_the_client_of_prometheus_tells() -> None:
    figures = process_figures()
    families = ProcessCollector(registry=None).collect()
    value_by_name = {sample.name: sample.value for family in families for sample in family.samples}

    assert set(figures) == set(value_by_name)
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert figures[name] == value_by_name[name]
    for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes"):
        assert figures[name] == pytest.approx(value_by_name[name], rel=0.5)


def test_a_system_that_does_not_tell_them_has_none(tmp_path: Path) -> None:
    assert process_figures(tmp_path) == {}
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").write_text("1 (penstock) S 1")
    (tmp_path / "stat").write_text("cpu 1")
    assert process_figures(tmp_path) == {}
