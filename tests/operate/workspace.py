"""A workspace without some of its packages: their folders and lines in pyproject.toml are gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from scripts.packages import ROOT, members, projects

OURS = ("penstock", "pyspark_penstock", "__editable__", "_penstock")
"""Beginnings of names in site-packages that belong to the packages of this project."""


class Workspace:
    """A copy of the checkout, and what is installed here but for the packages of the project.

    The packages that stay are on the search path, with the metadata that an installation has.
    Removed as well is what requires a removed package: `penstock-realm`, if that has no extra for
    it.
    """

    def __init__(self, folder: Path, *removed: str) -> None:
        self.root = folder / "checkout"
        dependents = {
            dependent for package in removed for dependent in requiring(f"penstock-{package}")
        }
        for name in listed():
            if not name.startswith(tuple(f"packages/{package}/" for package in dependents)):
                copy = self.root / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy)
        workspace = self.root / "pyproject.toml"
        lines = workspace.read_text(encoding="utf-8").splitlines(keepends=True)
        members_gone = {f'"packages/{package}",' for package in dependents}
        kept = [line for line in lines if line.strip() not in members_gone]
        assert len(kept) == len(lines) - len(dependents)
        workspace.write_text("".join(kept), encoding="utf-8")
        self.site = folder / "site"
        self.site.mkdir()
        self._install()

    def _install(self) -> None:
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(OURS):
                (self.site / path.name).symlink_to(path)
        for name, project in projects(self.root).items():
            metadata = self.site / f"{name.replace('-', '_')}-{project['version']}.dist-info"
            metadata.mkdir()
            groups = project.get("entry-points", {})
            lines = [
                line
                for group, parts in groups.items()
                for line in (f"[{group}]", *(f"{part} = {place}" for part, place in parts.items()))
            ]
            (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the workspace, without the site-packages of this environment."""
        sources = [f"{member / 'src'}" for member in members(self.root)]
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sources, f"{self.site}"])},
            capture_output=True,
            text=True,
            check=False,
        )


@cache
def listed() -> Sequence[str]:
    """The files of the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in output.splitlines() if (ROOT / name).is_file()]


def requiring(name: str) -> set[str]:
    """The folders of a distribution and of those that cannot be installed without it."""
    removed_names = {name}
    for dependent, project in projects().items():  # dependencies first
        if removed_names & {Requirement(text).name for text in project["dependencies"]}:
            removed_names.add(dependent)
    return {name_removed.removeprefix("penstock-") for name_removed in removed_names}
