"""What the processes of the benchmarks are started with."""

from __future__ import annotations

import sys

import pytest

from bench.processes import SOURCES, figures_of

ASKED = """
import json, os, sys
first = os.environ["PYTHONPATH"].split(os.pathsep)[:2]
keeps = not sys.dont_write_bytecode
print(json.dumps({"keeps": float(keeps), "is_ours": float(first == sys.argv[1:])}))
"""


@pytest.mark.process
def test_measured_processes_have_our_source_and_keep_what_they_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")

    found = figures_of([sys.executable, "-c", ASKED, *map(str, SOURCES)])

    assert found == {"keeps": 1.0, "is_ours": 1.0}
