"""The environment and processors with which the processes of the benchmarks are started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.processes import ROOT, figures_of, sources_at

ASKED = """
import json, os, sys
first = os.environ["PYTHONPATH"].split(os.pathsep)[: len(sys.argv) - 1]
keeps = not sys.dont_write_bytecode
print(json.dumps({"keeps": float(keeps), "is_ours": float(first == sys.argv[1:])}))
"""


@pytest.mark.process
def test_measured_processes_have_our_source_and_keep_what_they_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")

    figures = figures_of([sys.executable, "-c", ASKED, str(ROOT)])

    assert figures == {"keeps": 1.0, "is_ours": 1.0}


@pytest.mark.process
def test_an_earlier_penstock_is_found_by_what_is_started_meanwhile_alone(tmp_path: Path) -> None:
    sources = tmp_path / "packages" / "core" / "src"
    sources.mkdir(parents=True)
    with sources_at(tmp_path):
        meanwhile = figures_of([sys.executable, "-c", ASKED, str(sources), str(ROOT)])
    afterwards = figures_of([sys.executable, "-c", ASKED, str(ROOT)])

    assert meanwhile["is_ours"] == afterwards["is_ours"] == 1.0
