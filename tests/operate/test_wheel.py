"""What is released: a wheel and a source distribution, the same from each build."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.process]


def built(folder: Path) -> dict[str, bytes]:
    """The files of a build, by name."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-d",
            str(folder),
            "-t",
            "sdist",
            "-t",
            "wheel",
        ],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        timeout=BUILD_TIMEOUT_S,
        check=True,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_build_is_the_same_bytes_each_time_and_says_its_version(tmp_path: Path) -> None:
    first, second = built(tmp_path / "first"), built(tmp_path / "second")

    stem = f"penstock_realm-{penstock.__version__}"
    wheel, sources = f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"
    assert set(first) == {wheel, sources}
    assert first == second
    with zipfile.ZipFile(tmp_path / "first" / wheel) as file:
        names = set(file.namelist())
        metadata = file.read(f"{stem}.dist-info/METADATA").decode()
        commands = file.read(f"{stem}.dist-info/entry_points.txt").decode()
    assert f"\nVersion: {penstock.__version__}\n" in metadata
    assert "penstock = penstock_server.cli:main" in commands
    assert {"penstock/py.typed", f"{stem}.dist-info/licenses/LICENSE"} <= names
    with tarfile.open(tmp_path / "first" / sources) as tar:
        assert f"{stem}/packages/client/src/penstock/__init__.py" in tar.getnames()
