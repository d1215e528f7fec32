"""Count wordings in packages, benchmarks and test programs that a technical reader stumbles over,
for each 1,000 texts.

Texts are docstrings (also those below attributes), comments and the texts of raised errors. Names
are those of functions and local values. A count says where to read; rewrite the sentence or name
the thing, and do not exchange one flagged word for another.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scripts.weight.source import (
    Source,
    documentation,
    sources_below,
    statements,
    workspace_sources,
)

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = Path(__file__).with_name("prose.toml")
BENCHMARKS: Final = "bench"
"""Folder of the benchmarks, which are counted like a package."""
TEST_PROGRAMS: Final = ("tests/sim", "tests/faults", "tests/fuzz")
"""Folders of tests that are also programs, which are counted like packages."""

NAMES: Final = frozenset(
    {
        word
        for words in (
            "found each there known asked given told said taken gone came left look looked looks",
            "them those these both other own had over at by of whole piece",
        )
        for word in words.split()
    }
)
"""Names that do not say what a value is or what a function does."""


class Rule(NamedTuple):
    """A wording, and the number of 1,000 texts that may have it."""

    name: str
    goal: float
    pattern: str
    """Empty for the rule about names."""


RULES: Final = (
    Rule("name", 5, ""),
    Rule(
        "opening",
        4,
        r"^(?!(?:Whether|If|When(?:ever)? \w+ing)\b)"
        r"(?:What|Who|Whose|Whom|Where|When|How|Of|By|To|From|For|In|On|At|The same|Those|These"
        r"|That|It|They|Them|Nothing|None|Nobody|Somebody|So|As|But|And|Also|There|Has|Is|Are)\b",
    ),
    Rule("what is", 11, r"(?i)\b(?:what|which) (?:is|was|has|had|there)\b(?! (?:the|a|an)\b)"),
    Rule("there is", 15, r"(?i)\bthere (?:is|are|was|were|be|has been|have been)\b"),
    Rule(
        "of which",
        10,
        r"(?i)\b(?:of|by|to|in|for|from|with|about|under|behind) (?:which|whom|what|whose)\b",
    ),
    Rule(
        "somebody",
        7,
        r"(?i)\b(?:whoever|whomever|somebody|nobody|anybody|everybody|someone|anyone)\b",
    ),
    Rule(
        "comes to",
        5,
        r"(?i)\b(?:comes? to|goes? on|went on|came|gone|hands? on|lets? go|puts? to|takes? up"
        r"|gives? up)\b",
    ),
    Rule(
        "gives whether",
        2,
        r"(?i)\b(?:gives?|says?|tells?|told|said|asks?|asked) "
        r"(?:whether|what|who|how|when|where|of)\b",
    ),
    Rule(
        "is no",
        4,
        r"(?i)\b(?:is|are|was|were|be) no"
        r"(?!t\b|\s+(?:longer|more|fewer|less|later|earlier|other|such|way)\b)\s+[a-z]",
    ),
    Rule("of its own", 2, r"(?i)\bof (?:its|their|one's) own\b"),
    Rule(
        "anew",
        4,
        r"(?i)\b(?:anew|beside|besides|thereby|therein|wherein|whereby|hence|whilst|amongst|upon"
        r"|thus|ere)\b",
    ),
)
SLACK: Final = 1.1
"""Factor by which a rate may exceed its record: it also rises if other texts are deleted."""
_PATTERNS: Final = {rule.name: re.compile(rule.pattern) for rule in RULES if rule.pattern}


class Text(NamedTuple):
    """A docstring, a comment or an error text, on one line."""

    line: int
    kind: str
    words: str


class Hit(NamedTuple):
    """A place that a rule counts."""

    rule: str
    path: Path
    line: int
    shown: str


class Prose(NamedTuple):
    """The texts of a package, and the places that rules count in it."""

    texts: int
    hits: Sequence[Hit]

    def rates(self) -> dict[str, float]:
        """Return the hits of each rule for each 1,000 texts."""
        counts = Counter(hit.rule for hit in self.hits)
        return {rule.name: 1_000 * counts[rule.name] / max(1, self.texts) for rule in RULES}


def texts_of(source: Source) -> Iterator[Text]:
    """Yield every docstring, comment and error text of a module."""
    for constant in documentation(source.tree):
        yield Text(constant.lineno, "docstring", _on_one_line(str(constant.value)))
    for node in statements(source.tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                text = part.value if isinstance(part, ast.Constant) else None
                if isinstance(text, str) and " " in text:
                    yield Text(node.lineno, "error", _on_one_line(text))
    if "#" not in source.text:  # most modules have no comment, and tokens take long
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], "comment", _on_one_line(token.string.lstrip("# ")))


def hits_in(source: Source, texts: Iterable[Text]) -> Iterator[Hit]:
    """Yield the places of a module that a rule counts."""
    for text in texts:
        for rule, pattern in _PATTERNS.items():
            if rule == "opening" and text.kind != "docstring":
                continue
            if pattern.search(text.words):
                yield Hit(rule, source.path, text.line, f"{text.kind}: {text.words[:120]}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.strip("_") in NAMES:
                yield Hit("name", source.path, node.lineno, f"def {node.name}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield Hit("name", source.path, node.lineno, node.id)


def prose_by_package(sources: Iterable[Source]) -> dict[str, Prose]:
    """Return the texts and hits of each package, by the name of its folder."""
    counts: Counter[str] = Counter()
    hits: dict[str, list[Hit]] = {}
    for source in sources:
        package = _package_of(source.path)
        texts = list(texts_of(source))
        counts[package] += len(texts)
        hits.setdefault(package, []).extend(hits_in(source, texts))
    return {package: Prose(counts[package], hits[package]) for package in hits}


def read_record(path: Path = RECORD) -> dict[str, dict[str, float]]:
    """Return the rates that packages may still have above the goals."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def faults(
    measured: Mapping[str, Prose], record: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """Yield a line for each rate that is above its goal and above the record."""
    for package, prose in measured.items():
        rates = prose.rates()
        for rule in RULES:
            rate = rates[rule.name]
            allowed = max(rule.goal, SLACK * record.get(package, {}).get(rule.name, 0.0))
            if rate > allowed:
                yield (
                    f"{package}: {rate:.1f} of 1,000 texts have {rule.name!r}, allowed are "
                    f"{allowed:.1f}; python -m scripts.prose {package} --list {rule.name!r}"
                )


def lowered(
    measured: Mapping[str, Prose], record: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the record with the measured rates where they are lower, without rates that have
    reached their goal."""
    result: dict[str, dict[str, float]] = {}
    for package, prose in measured.items():
        rates = prose.rates()
        for rule in RULES:
            before = record.get(package, {}).get(rule.name)
            # Rounded up, so that the measured rate is allowed.
            rate = -(-rates[rule.name] * 10 // 1) / 10
            allowed = rate if before is None else min(rate, before)
            if allowed > rule.goal:
                result.setdefault(package, {})[rule.name] = allowed
    return result


def render(record: Mapping[str, Mapping[str, float]]) -> str:
    """Return the record as TOML."""
    lines = [
        "# Wordings for each 1,000 texts that packages may still have above the goals of",
        "# scripts/prose.py. Lower it with python -m scripts.prose --record; it never rises.",
    ]
    for package, rates in record.items():
        lines += ["", f"[{package}]"]
        lines += [f'"{rule}" = {rate:g}' for rule, rate in rates.items()]
    return "\n".join(lines) + "\n"


def table(measured: Mapping[str, Prose]) -> Iterator[str]:
    """Yield the lines of the table of packages and rules."""
    width = max(len(rule.name) for rule in RULES)
    by_package = [prose.rates() for prose in measured.values()]
    yield f"{'':{width}}  {'goal':>5}" + "".join(f"{package:>9}" for package in measured)
    for rule in RULES:
        columns = "".join(f"{rates[rule.name]:9.1f}" for rates in by_package)
        yield f"{rule.name:{width}}  {rule.goal:5g}{columns}"
    counts = "".join(f"{prose.texts:9,}" for prose in measured.values())
    yield f"{'texts':{width}}  {'':5}{counts}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or the places of a rule, or lower the record. Return the exit status."""
    parser = argparse.ArgumentParser("python -m scripts.prose", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these packages")
    parser.add_argument("--list", metavar="RULE", choices=[rule.name for rule in RULES])
    parser.add_argument("--record", action="store_true", help=f"lower {RECORD.name}")
    options = parser.parse_args(arguments)
    folders = (BENCHMARKS, *TEST_PROGRAMS)
    others = (source for folder in folders for source in sources_below(ROOT / folder))
    measured = prose_by_package((*workspace_sources(ROOT), *others))
    if unknown := set(options.packages) - set(measured):
        parser.error(f"no package {', '.join(sorted(unknown))}; there are {', '.join(measured)}")
    if options.record:
        RECORD.write_text(render(lowered(measured, read_record())), encoding="utf-8")
        return 0
    chosen = {name: measured[name] for name in options.packages or measured}
    if options.list:
        for prose in chosen.values():
            for hit in prose.hits:
                if hit.rule == options.list:
                    print(f"{hit.path.relative_to(ROOT)}:{hit.line}: {hit.shown}")
        return 0
    print(*table(chosen), sep="\n")
    return 0


def _package_of(path: Path) -> str:
    """Return the name of the folder that a file is counted with."""
    parts = path.relative_to(ROOT).parts if path.is_absolute() else path.parts
    return parts[1] if parts[0] in ("packages", "tests") else parts[0]


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
