"""The changelog: the fragments in ``changelog.d``, and the released versions.

Each fragment is a separate file, so that two changes never edit the same lines.

``changelog.py --check``            fails if the name or the text of a fragment is not valid
``changelog.py --release 0.2.0``    combines the fragments into version 0.2.0, dated today, deletes
                                    them, and sets the version of the packages and of the image
``changelog.py --notes 0.2.0``      prints the entries of a version
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
DEPLOYMENTS = (
    "packaging/compose.yaml",
    "packaging/compose-cluster.yaml",
    "packaging/helm/*/Chart.yaml",
)
"""Files that name the version of the image."""
KINDS = ("added", "changed", "fixed", "deprecated", "removed", "security")
FIRST = ("removed", "changed", "deprecated", "added", "fixed", "security")
"""Kinds in the order in which a release lists them: changes that users must react to come first."""
UNRELEASED = "## Unreleased"

_RELEASE = re.compile(r"^## (\d+\.\d+\.\d+\S*) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def fragments(folder: Path) -> list[Path]:
    """Return all fragments in the folder, in the order of their names."""
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def faults(paths: list[Path]) -> list[str]:
    """Return a sentence for each fault of these fragments."""
    texts = []
    for path in paths:
        kind = path.name.removesuffix(".md").rpartition(".")[2]
        if kind not in KINDS:
            texts.append(f"{path.name}: its name should end in one of {', '.join(KINDS)}, then .md")
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or not all(line.startswith("- ") for line in lines):
            texts.append(f"{path.name}: each line should begin with '- '")
    return texts


def releases(changelog: str) -> list[tuple[str, str]]:
    """Return each released version with its date, the newest first."""
    return _RELEASE.findall(changelog)


def released(changelog: str, version: str, date: str, paths: list[Path]) -> str:
    """Return the changelog with the fragments as a new version above the others. Raises
    ``SystemExit`` if the version exists or there are no fragments."""
    if version in dict(releases(changelog)):
        raise SystemExit(f"CHANGELOG.md has a version {version} already")
    if not paths:
        raise SystemExit("changelog.d has no fragments: there is nothing to release")
    head, mark, rest = changelog.partition(UNRELEASED)
    assert mark, f"CHANGELOG.md has no part {UNRELEASED!r}"
    body, next_release, older = rest.partition("\n## ")
    parts = [f"## {version} ({date})", *_by_kind(paths)]
    return head + mark + body + "\n" + "\n\n".join(parts) + "\n" + next_release + older


def _by_kind(paths: list[Path]) -> list[str]:
    """Return a part of the new version for each kind of change."""
    parts = []
    for kind in FIRST:
        lines = [
            # Links in a fragment are relative to the folder of the fragments.
            path.read_text(encoding="utf-8").strip("\n").replace("](../", "](")
            for path in paths
            if path.name.endswith(f".{kind}.md")
        ]
        if lines:
            parts.append("\n".join([f"### {kind.capitalize()}", *lines]))
    return parts


def notes(changelog: str, version: str) -> str:
    """Return the entries of a version, without its heading. Raises ``SystemExit`` if the changelog
    does not have the version."""
    for heading in _RELEASE.finditer(changelog):
        if heading[1] == version:
            return changelog[heading.end() :].partition("\n## ")[0].strip() + "\n"
    raise SystemExit(f"CHANGELOG.md has no version {version}")


def with_version(module: str, version: str) -> str:
    """Return the text of the module that has the version, with another version."""
    text, count = _VERSION.subn(f'__version__ = "{version}"', module)
    assert count == 1, "the module must have exactly one version"
    return text


def project_with_version(text: str, version: str) -> str:
    """Return the text of a pyproject.toml with another version, both of itself and of the packages
    of the workspace that it requires."""
    renumbered = re.sub(r'^version = ".*"$', f'version = "{version}"', text, flags=re.MULTILINE)
    return re.sub(r'("penstock-[\w\[\],-]+==)[^"]+"', rf'\g<1>{version}"', renumbered)


def deployment_with_version(text: str, version: str) -> str:
    """Return the text of a Compose file or of a chart with another version of the image."""
    return re.sub(
        r"^(version|appVersion| *image): (penstock:)?\S+$",
        lambda line: f"{line[1]}: {line[2] or ''}{version}",
        text,
        flags=re.MULTILINE,
    )


def _release(version: str) -> None:
    """Combine the fragments into a version, delete them, and set the version of all packages."""
    # The errors of the fragments and of the version are raised before the first file is written.
    paths = fragments(FRAGMENTS)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    changelog = released(CHANGELOG.read_text(encoding="utf-8"), version, today, paths=paths)
    module = with_version(PACKAGE.read_text(encoding="utf-8"), version)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = path.read_text(encoding="utf-8")
        path.write_text(project_with_version(project, version), encoding="utf-8")
    for path in (path for pattern in DEPLOYMENTS for path in ROOT.glob(pattern)):
        deployment = path.read_text(encoding="utf-8")
        path.write_text(deployment_with_version(deployment, version), encoding="utf-8")
    CHANGELOG.write_text(changelog, encoding="utf-8")
    PACKAGE.write_text(module, encoding="utf-8")
    for path in paths:
        path.unlink()


def main(arguments: list[str]) -> int:
    """Execute the action of the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--check", action="store_true", help="check the fragments")
    actions.add_argument(
        "--release", metavar="VERSION", help="combine the fragments into a version"
    )
    actions.add_argument("--notes", metavar="VERSION", help="print the entries of a version")
    options = parser.parse_args(arguments)
    if options.notes:
        print(notes(CHANGELOG.read_text(encoding="utf-8"), options.notes), end="")
        return 0
    if texts := faults(fragments(FRAGMENTS)):
        print("\n".join(texts), file=sys.stderr)
        return 1
    if options.release:
        _release(options.release)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
