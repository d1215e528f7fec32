"""Fragments of the changelog have names and texts that the script can place."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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


def test_fragments_come_first_under_their_kind_in_the_unreleased_part(
    changelog: ModuleType, tmp_path: Path
) -> None:
    added, fixed = tmp_path / "a.added.md", tmp_path / "b.fixed.md"
    added.write_text("- New.\n")
    fixed.write_text("- Mended.\n")
    before = (
        "# Changelog\n\n## Unreleased (1.1)\n\n### Added\n- Old.\n\n## 1.0\n\n### Fixed\n- X.\n"
    )

    after = changelog.with_fragments(before, [added, fixed])

    assert "### Added\n- New.\n- Old.\n\n### Fixed\n- Mended.\n" in after
    assert after.endswith("## 1.0\n\n### Fixed\n- X.\n")
