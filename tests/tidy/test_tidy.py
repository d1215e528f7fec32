"""Size, names and shape of the code. Raising a limit is a line in a list here, with a reason."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

from scripts.weight.source import statement_count
from tests.tidy.parsing import files_below, files_of_tests, parsed

ROOT = Path(__file__).resolve().parents[2]

MODULE_STATEMENTS_MAX = 400
"""Comments, docstrings and line breaks cost nothing: a limit in lines was met without them."""
OVERSIZED: dict[str, str] = {}
"""Modules over the limit, by path from the root, each with why it may be."""

VAGUE = ("manager", "handler", "helper", "helpers", "util", "utils", "common", "misc", "base")
ELSEWHERE = ("core", "broker", "service", "processor", "data", "impl")
REFUSED_NAMES = frozenset({*VAGUE, *ELSEWHERE})
"""Modules called so have not found their noun. The package ``core`` has; a module has not."""

RULES = (
    "access",
    "channel",
    "channel_types",
    "durable",
    "durables",
    "engines",
    "ids",
    "messages",
    "realm",
    "vocabulary",
)
"""Folders of the core whose modules have a test file each."""
WITHOUT_TEST_FILE: dict[str, str] = {
    **{
        f"messages/{subject}.py": "records without behaviour"
        for subject in (
            "definitions",
            "delivery",
            "durables",
            "joins",
            "kinds",
            "pattern_durables",
            "publishing",
            "retention",
            "seats",
            "seeking",
            "segments",
            "settlements",
            "snapshots",
            "subscribers",
            "transactions",
        )
    },
    "channel/channel_type.py": "a protocol; its types are tested",
    "channel/engine.py": "a protocol; its engines are tested",
    "channel/decided.py": "a record without behaviour",
    "vocabulary/causes.py": "names without behaviour",
    "vocabulary/compression.py": "a type without behaviour",
    "vocabulary/definitions.py": "records; their bounds are tested",
    "vocabulary/digest.py": "a record without behaviour",
    "vocabulary/effects.py": "records without behaviour",
    "vocabulary/identities.py": "types without behaviour",
    "vocabulary/node_figures.py": "records without behaviour",
    "realm/exported_file.py": "a record without behaviour",
    "durable/seat.py": "the protocol of kinds; tested with the durables",
    "vocabulary/start_positions.py": "records without behaviour",
    "vocabulary/ports.py": "protocols; the contract kit tests their adapters",
}
"""Modules of the core without a test file of their name, each with why."""

CLOCKS = frozenset({"perf_counter", "process_time", "thread_time", "monotonic"})
TIMED: dict[str, str] = {
    "tests/patience.py": "a limit that no machine comes near",
    "tests/faults": "a program: it runs for so many minutes, and its journals have times",
    "tests/fuzz": "a program: it runs for so many seconds",
    "packages/spark/tests/pipelines/realm_kills.py": "a program: it runs for so many minutes",
}
"""Where tests look at a clock of the machine, each with why. No other test does: how long
something takes says how busy the machine is. Count the work (`tests/counting.py`), or pass
virtual time (`@simulated`)."""

# Written in two parts, so that this file does not find itself.
FOREIGN = {
    "a path of one machine": re.compile(r"/(?:wo" r"rk|ho" r"me/\w+|Us" r"ers/\w+|ro" r"ot)/"),
    "a directory for throw-away files": re.compile(r"/t" r"mp/"),
    "the address of a package registry": re.compile(r"py" r"thonhosted\.|pypi\.o" r"rg/simple"),
}
"""Words that describe the place where a text was written, not Penstock."""

TEXT_SUFFIXES = frozenset((".py", ".md", ".toml", ".lock", ".sh", ".cfg", ".yml", ".properties"))
TEXT_NAMES = frozenset(("Makefile", "LICENSE", "run", ".gitignore", ".editorconfig"))
TEXT_FOLDERS = ("packages", "bench", "tests", "docs", "examples", "scripts", ".ci")


def modules() -> list[Path]:
    return [path for path in files_below("packages", "bench", "tests") if path.suffix == ".py"]


def texts() -> list[Path]:
    in_root = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    paths = [*in_root, *files_below(*TEXT_FOLDERS)]
    return [path for path in paths if path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_refused(path: Path) -> bool:
    return path.stem.removeprefix("test_").strip("_") in REFUSED_NAMES


def test_no_module_is_longer_than_a_sitting() -> None:
    sizes = {name_of(path): statement_count(parsed(path)) for path in modules()}
    too_long = {name: size for name, size in sizes.items() if size > MODULE_STATEMENTS_MAX}

    assert too_long.keys() == OVERSIZED.keys(), f"over {MODULE_STATEMENTS_MAX}; split by noun"


def test_every_module_has_found_its_noun() -> None:
    assert [name_of(path) for path in modules() if is_refused(path)] == []


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in modules() if path.stat().st_size and not _sentence_of(path)]

    assert silent == []


def _sentence_of(path: Path) -> str:
    """The docstring of a module, read off its first two words: parsing all takes seconds."""
    with path.open(encoding="utf-8") as file:
        words = (
            token
            for token in tokenize.generate_tokens(file.readline)
            if token.type not in (tokenize.COMMENT, tokenize.NL)
        )
        first, second = next(words), next(words, None)
    if first.type != tokenize.STRING or second is None or second.type != tokenize.NEWLINE:
        return ""
    return str(ast.literal_eval(first.string)).strip()


def test_every_module_of_the_core_has_its_test_file() -> None:
    core = ROOT / "packages/core/src/penstock_core"
    tests = ROOT / "packages/core/tests"
    untested = {
        path.relative_to(core).as_posix()
        for folder in RULES
        for path in (core / folder).rglob("*.py")
        if path.name != "__init__.py"
        and not (tests / path.relative_to(core)).with_name(f"test_{path.name}").is_file()
    }

    assert untested == set(WITHOUT_TEST_FILE)


def test_every_test_file_of_the_core_tests_a_module() -> None:
    core = ROOT / "packages/core/src/penstock_core"
    tests = ROOT / "packages/core/tests"
    orphans = [
        name_of(path)
        for folder in RULES
        for path in (tests / folder).rglob("test_*.py")
        if not (core / path.relative_to(tests)).with_name(path.name[len("test_") :]).is_file()
    ]

    assert orphans == []


@pytest.mark.parametrize("module", ["time", "asyncio"])
def test_no_test_sleeps(module: str) -> None:
    """A test waits for what it expects or moves the clock. ``asyncio.sleep(0)`` only yields."""
    sleepers = [
        f"{name_of(path)}:{node.lineno}"
        for path in files_of_tests()
        if "sleep" in path.read_text()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and ast.unparse(node.func) == f"{module}.sleep"
        and ast.unparse(node.args[0]) != "0"
    ]

    assert sleepers == []


def test_the_text_speaks_of_the_project_alone() -> None:
    places = [
        f"{name_of(path)}:{number} has {what}: {line.strip()[:80]}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for what, pattern in FOREIGN.items()
        if pattern.search(line)
    ]

    assert places == []


def _clocks_in(path: Path) -> set[str]:
    """The clocks of the machine that a module names, in nanoseconds or not."""
    names: set[str] = set()
    text = path.read_text(encoding="utf-8")
    if not any(clock in text for clock in CLOCKS):
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.alias | ast.Attribute | ast.Name):
            name = {ast.alias: "name", ast.Attribute: "attr", ast.Name: "id"}[type(node)]
            names.add(getattr(node, name).removesuffix("_ns"))
    return names & CLOCKS


def test_tests_count_and_do_not_time() -> None:
    paths = {path: path.relative_to(ROOT).as_posix() for path in files_of_tests()}
    timed = [
        name
        for path, name in paths.items()
        if not any(name == prefix or name.startswith(f"{prefix}/") for prefix in TIMED)
        and _clocks_in(path)
    ]

    assert timed == []
    assert _clocks_in(ROOT / "tests" / "patience.py") == {"perf_counter"}
