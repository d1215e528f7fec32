"""Moves modules into rooms and rewrites every name of them, as `regroup.txt` lists (old, new).

It may be run again: what is moved already stays, and only old names are rewritten.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOVES = dict(line.split() for line in (ROOT / "scripts/regroup.txt").read_text().splitlines())


def dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


NAMES = {dotted(old): dotted(new) for old, new in MOVES.items()}
TESTS = dict(line.split() for line in (ROOT / "scripts/regroup_tests.txt").read_text().splitlines())
SUBMODULES: dict[str, set[str]] = {}
for name in NAMES.values():
    package, _, leaf = name.rpartition(".")
    SUBMODULES.setdefault(package, set()).add(leaf)


def move(old: Path, new: Path) -> None:
    if not old.is_file() or new == old:
        return
    new.parent.mkdir(exist_ok=True)
    if new.exists():
        sys.exit(f"both {old} and {new} are there")
    subprocess.run(["git", "mv", str(old), str(new)], cwd=ROOT, check=True)


def move_all() -> None:
    # A package may have the name of a module that moves into it.
    for old, new in MOVES.items():
        if old.removesuffix(".py") == str(Path(new).parent) and (ROOT / "src" / old).is_file():
            aside = ROOT / "src" / new.replace("/" + Path(new).name, "_aside_" + Path(new).name)
            move(ROOT / "src" / old, aside)
            (ROOT / "src" / new).parent.mkdir(exist_ok=True)
            move(aside, ROOT / "src" / new)
    for old, new in MOVES.items():
        move(ROOT / "src" / old, ROOT / "src" / new)
        if old.startswith("penstock/core/"):
            test = f"test_{Path(old).name}"
            target = ROOT / "tests/core" / Path(new).parent.name / f"test_{Path(new).name}"
            move(ROOT / "tests/core" / test, target)
    for old, new in TESTS.items():
        move(ROOT / old, ROOT / new)


def of_import(node: ast.ImportFrom) -> list[str] | None:
    """The statements that replace it; None if it stays."""
    module = node.module or ""
    if node.level or not module.startswith("penstock"):
        return None
    found: dict[str, list[str]] = {}
    changed = False
    for alias in node.names:
        full = f"{module}.{alias.name}"
        is_new = alias.name in SUBMODULES.get(module, ())
        if full in NAMES and not (is_new and module in NAMES.values()):
            parent, _, leaf = NAMES[full].rpartition(".")
            kept = alias.asname or alias.name
            text = leaf if leaf == kept else f"{leaf} as {kept}"
            found.setdefault(parent, []).append(text)
            changed = True
            continue
        target = module
        if module in NAMES and not is_new:
            target = NAMES[module]
            changed = True
        text = alias.name if not alias.asname else f"{alias.name} as {alias.asname}"
        found.setdefault(target, []).append(text)
    if not changed:
        return None
    return [f"from {target} import {', '.join(names)}" for target, names in found.items()]


def rewrite_imports(text: str) -> str:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    lines = text.splitlines(keepends=True)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        statements = of_import(node)
        if statements is None:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        behind = lines[last][node.end_col_offset or 0 :]
        before = lines[first][: node.col_offset]
        indent = " " * node.col_offset if not before.strip() else "    "
        said = f"\n{indent}".join(statements)
        lines[first : last + 1] = [before + said + behind]
    return "".join(lines)


def rewrite_names(text: str) -> str:
    """Dotted names and paths in strings, comments and pages."""

    def dot(match: re.Match[str]) -> str:
        prefix, name, rest = match["prefix"] or "", match["name"], match["rest"]
        full = f"penstock.{name}"
        leaf = rest[1:]
        if leaf in SUBMODULES.get(full, ()):
            return match[0]
        return prefix + NAMES[full].removeprefix("penstock.") + rest

    short = "|".join(sorted((re.escape(n.removeprefix("penstock.")) for n in NAMES), key=len)[::-1])
    name = re.compile(
        rf"(?P<prefix>(?<![\w./])penstock\.)(?P<name>{short})(?P<rest>(?:\.\w+)?)(?!\w)"
    )
    text = "".join(
        line if re.match(r"\s*from penstock", line) else name.sub(dot, line)
        for line in text.splitlines(keepends=True)
    )
    paths = "|".join(re.escape(old.removeprefix("penstock/")) for old in MOVES)

    def path(match: re.Match[str]) -> str:
        new = MOVES[f"penstock/{match['path']}"]
        return (match["before"] or "") + new.removeprefix("penstock/")

    text = re.sub(rf"(?<![\w/-])(?P<before>(?:src/)?(?:penstock/)?)(?P<path>{paths})\b", path, text)
    for old, new in TESTS.items():
        text = text.replace(old, new).replace(
            old.removeprefix("tests/"), new.removeprefix("tests/")
        )
    return text


def main() -> None:
    move_all()
    roots = ["src", "tests", "bench", "examples", "scripts", "docs", "changelog.d"]
    files = [
        path
        for root in roots
        for kind in ("*.py", "*.md", "*.toml", "*.pyi")
        for path in (ROOT / root).rglob(kind)
        if path.name not in {"regroup.py"}
    ]
    files += [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "mkdocs.yml", ROOT / "Makefile"]
    changed = []
    for path in files:
        if path.name == "CHANGELOG.md":
            continue
        before = path.read_text()
        after = rewrite_imports(before) if path.suffix == ".py" else before
        after = rewrite_imports_in_text(after) if path.suffix == ".md" else after
        after = rewrite_names(after)
        if after != before:
            path.write_text(after)
            if path.suffix == ".py":
                changed.append(str(path))
    if changed:
        ruff = str(Path(sys.executable).parent / "ruff")
        select = ["check", "-q", "--select", "I,F401", "--fix", *changed]
        subprocess.run([ruff, *select], cwd=ROOT, check=False)
        subprocess.run([ruff, "format", "-q", *changed], cwd=ROOT, check=True)
    print(f"{len(changed)} files of code rewritten")


def rewrite_imports_in_text(text: str) -> str:
    def line(match: re.Match[str]) -> str:
        try:
            node = ast.parse(match["code"]).body[0]
        except SyntaxError:
            return match[0]
        assert isinstance(node, ast.ImportFrom)
        said = of_import(node)
        indent = match["indent"]
        return match[0] if said is None else "\n".join(indent + one for one in said)

    return re.sub(r"(?m)^(?P<indent> *)(?P<code>from penstock[\w.]* import [\w, ]+)$", line, text)


if __name__ == "__main__":
    main()
