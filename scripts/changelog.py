"""The changelog: fragments of ``changelog.d``, releases, and the notes of one.

Each fragment is a file of its own, so that two changes never meet in the same lines.

``changelog.py --check``            fails when a fragment's name or text does not do
``changelog.py --release 0.2.0``    makes the fragments the part of version 0.2.0, dated today, and
                                    deletes them; the package says that version from then on
``changelog.py --notes 0.2.0``      prints what the changelog says of a version
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "changelog.d"
CHANGELOG = ROOT / "CHANGELOG.md"
PACKAGE = ROOT / "packages/core/src/penstock_core/version.py"
KINDS = ("added", "changed", "fixed", "deprecated", "removed", "security")
FIRST = ("removed", "changed", "deprecated", "added", "fixed", "security")
"""Kinds in the order of a release: what users have to do something about comes first."""
UNRELEASED = "## Unreleased"

_RELEASE = re.compile(r"^## (\d+\.\d+\.\d+\S*) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def fragments(folder: Path) -> list[Path]:
    """Every fragment of the folder, in the order of their names."""
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def faults(paths: list[Path]) -> list[str]:
    """What is wrong with these fragments, a sentence each."""
    found = []
    for path in paths:
        kind = path.name.removesuffix(".md").rpartition(".")[2]
        if kind not in KINDS:
            found.append(f"{path.name}: its name should end in one of {', '.join(KINDS)}, then .md")
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or not all(line.startswith("- ") for line in lines):
            found.append(f"{path.name}: each line should begin with '- '")
    return found


def releases(changelog: str) -> list[tuple[str, str]]:
    """Each released version with its date, the newest first."""
    return _RELEASE.findall(changelog)


def released(changelog: str, version: str, date: str, paths: list[Path]) -> str:
    """The changelog with the fragments as a version of their own, above the others."""
    known = releases(changelog)
    if version in dict(known):
        raise SystemExit(f"CHANGELOG.md has a version {version} already")
    if not paths:
        raise SystemExit("changelog.d has no fragments: there is nothing to release")
    head, mark, rest = changelog.partition(UNRELEASED)
    assert mark, f"CHANGELOG.md has no part {UNRELEASED!r}"
    body, next_release, older = rest.partition("\n## ")
    parts = [f"## {version} ({date})", *_by_kind(paths)]
    return head + mark + body + "\n" + "\n\n".join(parts) + "\n" + next_release + older


def _by_kind(paths: list[Path]) -> list[str]:
    parts = []
    for kind in FIRST:
        lines = [
            # links lead from the folder of the fragments
            path.read_text(encoding="utf-8").strip("\n").replace("](../", "](")
            for path in paths
            if path.name.endswith(f".{kind}.md")
        ]
        if lines:
            parts.append("\n".join([f"### {kind.capitalize()}", *lines]))
    return parts


def notes(changelog: str, version: str) -> str:
    """What the changelog says of a version, without its heading."""
    for found in _RELEASE.finditer(changelog):
        if found[1] == version:
            return changelog[found.end() :].partition("\n## ")[0].strip() + "\n"
    raise SystemExit(f"CHANGELOG.md has no version {version}")


def with_version(module: str, version: str) -> str:
    """The text of the package with another version."""
    after, count = _VERSION.subn(f'__version__ = "{version}"', module)
    assert count == 1, "the package does not say its version in one place"
    return after


def project_with_version(text: str, version: str) -> str:
    """The text of a pyproject.toml with another version: its own, and that of the packages of the
    workspace that it requires."""
    own = re.sub(r'^version = ".*"$', f'version = "{version}"', text, flags=re.MULTILINE)
    return re.sub(r'("penstock-[\w\[\],-]+==)[^"]+"', rf'\g<1>{version}"', own)


def _release(version: str) -> None:
    paths = fragments(FRAGMENTS)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = released(CHANGELOG.read_text(encoding="utf-8"), version, today, paths=paths)
    module = with_version(PACKAGE.read_text(encoding="utf-8"), version)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        text = path.read_text(encoding="utf-8")
        path.write_text(project_with_version(text, version), encoding="utf-8")
    CHANGELOG.write_text(text, encoding="utf-8")
    PACKAGE.write_text(module, encoding="utf-8")
    for path in paths:
        path.unlink()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="whether the fragments will do")
    what.add_argument("--release", metavar="VERSION", help="make the fragments a version")
    what.add_argument("--notes", metavar="VERSION", help="print what is said of a version")
    asked = parser.parse_args(arguments)
    if asked.notes:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), asked.notes), end="")
        return 0
    if wrong := faults(fragments(FRAGMENTS)):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if asked.release:
        _release(asked.release)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
