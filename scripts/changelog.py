"""Writes the fragments of ``changelog.d`` into CHANGELOG.md, under "Unreleased", and deletes them.

Each fragment is a file of its own, so that two changes never meet in the same lines.
``--check`` changes nothing and fails when a fragment's name or text does not do.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "changelog.d"
CHANGELOG = ROOT / "CHANGELOG.md"
KINDS = ("added", "changed", "fixed", "deprecated", "removed", "security")
UNRELEASED = "## Unreleased"


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


def with_fragments(changelog: str, paths: list[Path]) -> str:
    """The changelog with the fragments' lines first under their kind, in the unreleased part."""
    head, mark, rest = changelog.partition(UNRELEASED)
    assert mark, f"CHANGELOG.md has no part {UNRELEASED!r}"
    body, next_release, older = rest.partition("\n## ")
    for kind in KINDS:
        lines = [
            path.read_text(encoding="utf-8").strip("\n")
            for path in paths
            if path.name.endswith(f".{kind}.md")
        ]
        if not lines:
            continue
        heading = f"### {kind.capitalize()}\n"
        if heading not in body:
            body = body.rstrip("\n") + f"\n\n{heading}"
        body = body.replace(heading, heading + "\n".join(lines) + "\n", 1)
    return head + mark + body + next_release + older


def main(arguments: list[str]) -> int:
    paths = fragments(FRAGMENTS)
    wrong = faults(paths)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if "--check" not in arguments:
        text = with_fragments(CHANGELOG.read_text(encoding="utf-8"), paths)
        CHANGELOG.write_text(text, encoding="utf-8")
        for path in paths:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
