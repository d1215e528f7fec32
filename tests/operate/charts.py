"""Renders the Helm chart."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "packaging"
CHART = FOLDER / "helm" / "penstock"
KUBERNETES = "1.33"


@cache
def _helm() -> str:
    """Return the path of helm; skip the test on platforms for which it has no wheel."""
    path = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if path is None:
        pytest.skip("helm is not installed, and there is no wheel of it for this platform")
    return path


def run_helm(*arguments: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_helm(), *arguments, "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a release named ``shop`` in the namespace ``events``."""
    options = ("--namespace", "events", "--kube-version", KUBERNETES)
    result = run_helm("template", "shop", str(CHART), *options, values=values)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def of_kind(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = [document for document in objects if document["kind"] == kind]
    return one
