"""The dashboard for Grafana that is shipped: whatever it asks for is there, and can be asked."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "packaging" / "grafana-dashboard.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
"""Values that Grafana inserts for its variables."""


def expressions() -> list[str]:
    expressions_ = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        expressions_ = [expression.replace(name, value) for expression in expressions_]
    return expressions_


def test_every_metric_that_it_shows_is_one() -> None:
    page = (ROOT / "docs" / "guide" / "monitoring.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `((?:penstock|process)_\w+)` \|", page, re.MULTILINE))

    shown = {
        name.removesuffix("_bucket")
        for expression in expressions()
        for name in re.findall(r"(?:penstock|process)_\w+", expression)
    }

    assert len(shown) > 20
    assert shown - listed == set()


@pytest.mark.slow
def test_every_expression_can_be_asked(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"r:{n}", "expr": expression} for n, expression in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))

    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_no_variable_is_left_that_it_does_not_define() -> None:
    named = {f"${variable['name']}" for variable in DASHBOARD["templating"]["list"]}

    assert {"$source", "$instance"} == named
    assert not any("$" in expression for expression in expressions())


def test_its_panels_have_names_of_their_own_and_lie_side_by_side() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len({panel["id"] for panel in PANELS}) == len(set(titles)) == len(PANELS)
    for one, other_panel in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other_panel["x"]
            or other_panel["x"] + other_panel["w"] <= one["x"]
            or one["y"] + one["h"] <= other_panel["y"]
            or other_panel["y"] + other_panel["h"] <= one["y"]
        )
        assert apart, (one, other_panel)
