"""Release files: a wheel and a source distribution, identical in each build."""

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


def built(package: str, folder: Path) -> dict[str, bytes]:
    """The files of a package's build, by name."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(
        [*command, "-t", "sdist", "-t", "wheel"],
        cwd=ROOT / "packages" / package,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        timeout=BUILD_TIMEOUT_S,
        check=True,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("package", ["client", "server", "realm"])
def test_a_build_is_the_same_bytes_each_time_and_says_its_version(
    tmp_path: Path, package: str
) -> None:
    first, second = built(package, tmp_path / "first"), built(package, tmp_path / "second")

    stem = f"penstock_{package}-{penstock.__version__}"
    wheel, sources = f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"
    assert set(first) == {wheel, sources}
    assert first == second
    with zipfile.ZipFile(tmp_path / "first" / wheel) as file:
        names = set(file.namelist())
        metadata = file.read(f"{stem}.dist-info/METADATA").decode()
        if package == "server":
            commands = file.read(f"{stem}.dist-info/entry_points.txt").decode()
            assert "penstock = penstock_server.cli:main" in commands
    assert f"\nVersion: {penstock.__version__}\n" in metadata
    assert f"{stem}.dist-info/licenses/LICENSE" in names
    with tarfile.open(tmp_path / "first" / sources) as tar:
        inside = set(tar.getnames())
    assert f"{stem}/pyproject.toml" in inside
    if package == "client":
        assert f"{stem}/src/penstock/__init__.py" in inside
