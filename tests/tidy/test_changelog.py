"""Fragments of the changelog have names and texts that the script can place."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def changelog() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / "scripts" / "changelog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fragment_can_be_placed(changelog: ModuleType) -> None:
    paths = changelog.fragments(ROOT / "changelog.d")

    assert changelog.faults(paths) == []


def test_a_fragment_of_an_unknown_kind_is_named(changelog: ModuleType, tmp_path: Path) -> None:
    wrong = tmp_path / "names.mended.md"
    wrong.write_text("- Names may have spaces.\n")

    assert "names.mended.md" in changelog.faults([wrong])[0]


BEFORE = "# Changelog\n\n## Unreleased\n\nSee there.\n\n## 1.0.0 (2026-01-02)\n\n### Added\n- X.\n"


def test_a_release_is_made_of_the_fragments_what_asks_for_something_first(
    changelog: ModuleType, tmp_path: Path
) -> None:
    dead_link = "Gone: [why](../docs/why.md)."
    for name, text in (("a.added", "New."), ("b.fixed", "Mended."), ("c.removed", dead_link)):
        (tmp_path / f"{name}.md").write_text(f"- {text}\n")

    after = changelog.released(BEFORE, "1.1.0", "2026-02-03", changelog.fragments(tmp_path))

    assert changelog.releases(after) == [("1.1.0", "2026-02-03"), ("1.0.0", "2026-01-02")]
    assert changelog.notes(after, "1.1.0") == (
        "### Removed\n- Gone: [why](docs/why.md).\n\n### Added\n- New.\n\n### Fixed\n- Mended.\n"
    )
    assert changelog.notes(after, "1.0.0") == changelog.notes(BEFORE, "1.0.0")
    assert after.startswith("# Changelog\n\n## Unreleased\n\nSee there.\n\n## 1.1.0 (2026-02-03)\n")


def test_a_version_is_released_once_and_not_without_changes(
    changelog: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "a.added.md").write_text("- New.\n")

    with pytest.raises(SystemExit, match=r"has a version 1\.0\.0 already"):
        changelog.released(BEFORE, "1.0.0", "2026-02-03", changelog.fragments(tmp_path))
    with pytest.raises(SystemExit, match="there is nothing to release"):
        changelog.released(BEFORE, "1.1.0", "2026-02-03", [])
    with pytest.raises(SystemExit, match=r"has no version 2\.0\.0"):
        changelog.notes(BEFORE, "2.0.0")


def test_a_release_writes_the_version_of_the_package(changelog: ModuleType) -> None:
    module = '"""Text."""\n\n__version__ = "1.0.0"\n'

    assert changelog.with_version(module, "1.1.0") == module.replace("1.0.0", "1.1.0")


def test_a_release_writes_the_changelog_and_all_versions(
    changelog: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "packages" / "core" / "pyproject.toml"
    chart = tmp_path / "packaging" / "helm" / "penstock" / "Chart.yaml"
    compose = tmp_path / "packaging" / "compose.yaml"
    for path, text in (
        (tmp_path / "CHANGELOG.md", BEFORE),
        (tmp_path / "changelog.d" / "a.added.md", "- New.\n"),
        (tmp_path / "version.py", '__version__ = "1.0.0"\n'),
        (chart, "apiVersion: v2\nversion: 1.0.0\nappVersion: 1.0.0\n"),
        (compose, "services:\n  realm:\n    image: penstock:1.0.0\n"),
        (project, 'version = "1.0.0"\ndependencies = ["penstock-core==1.0.0"]\n'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(changelog, "ROOT", tmp_path)
    monkeypatch.setattr(changelog, "FRAGMENTS", tmp_path / "changelog.d")
    monkeypatch.setattr(changelog, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(changelog, "PACKAGE", tmp_path / "version.py")

    assert changelog.main(["--release", "1.1.0"]) == 0

    after = (tmp_path / "CHANGELOG.md").read_text()
    assert [version for version, _ in changelog.releases(after)] == ["1.1.0", "1.0.0"]
    assert changelog.notes(after, "1.1.0") == "### Added\n- New.\n"
    assert (tmp_path / "version.py").read_text() == '__version__ = "1.1.0"\n'
    assert project.read_text() == 'version = "1.1.0"\ndependencies = ["penstock-core==1.1.0"]\n'
    assert chart.read_text() == "apiVersion: v2\nversion: 1.1.0\nappVersion: 1.1.0\n"
    assert compose.read_text() == "services:\n  realm:\n    image: penstock:1.1.0\n"
    assert list((tmp_path / "changelog.d").iterdir()) == []


def test_the_newest_release_is_the_version_of_the_package(changelog: ModuleType) -> None:
    (newest, _), *_ = releases = changelog.releases((ROOT / "CHANGELOG.md").read_text())

    assert newest == penstock.__version__
    assert [date for _, date in releases] == sorted((date for _, date in releases), reverse=True)
    assert changelog.notes((ROOT / "CHANGELOG.md").read_text(), newest)


def test_the_first_release_mends_nothing(changelog: ModuleType) -> None:
    """No release had the defects that were fixed before it."""
    first, _ = changelog.releases((ROOT / "CHANGELOG.md").read_text())[-1]

    assert "### Fixed" not in changelog.notes((ROOT / "CHANGELOG.md").read_text(), first)
