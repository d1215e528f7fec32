"""Known violations of the rules in ``test_exceptions.py``.

``exceptions.txt`` has a line for each: its kind, how often it occurs, and what it is. The list may
only get shorter. ``python -m tests.tidy.exceptions`` removes what was mended; it never adds
anything."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts.weight import shape
from scripts.weight.source import documentation
from tests.tidy.parsing import parsed, sources

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("exceptions.txt")

CLASS, FRAGMENT, DOCSTRING = "class", "fragment", "docstring"
OPENINGS = ("The same", "Of ")
FOLDERS = ("packages", "bench", "examples", "scripts", "tests")
SHOWN = 60
"""Number of characters of a docstring that identify it."""

_MAY_OPEN = re.compile(r"""["']\s*(?:The same|Of )""")

Exceptions = Counter[tuple[str, str]]
"""Number of occurrences of each violation, by kind and text."""


def count_violations() -> Exceptions:
    """Return the violations in the present files."""
    exceptions = Exceptions()
    for name, modules in shape.repeated_classes(sources()).items():
        exceptions[CLASS, name] = len(modules)
    for module in shape.fragments(sources()):
        exceptions[FRAGMENT, module] = 1
    for opening in opened():
        exceptions[DOCSTRING, opening] += 1
    return exceptions


def opened() -> Iterator[str]:
    """Yield the beginning of each docstring that begins in a way that is not allowed."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if _MAY_OPEN.search(path.read_text(encoding="utf-8")):
                for node in documentation(parsed(path)):
                    text = str(node.value).strip()
                    if text.startswith(OPENINGS):
                        yield text.partition("\n")[0][:SHOWN].strip()


def listed(text: str) -> Exceptions:
    """Parse a list. If a violation has two lines, the smaller number counts."""
    exceptions = Exceptions()
    for line in text.splitlines():
        kind, times, what = line.split(" ", 2)
        limit = exceptions.get((kind, what), int(times))
        exceptions[kind, what] = min(limit, int(times))
    return exceptions


def written(exceptions: Exceptions) -> str:
    """Format a list for ``listed``."""
    lines = sorted((kind, what, times) for (kind, what), times in exceptions.items() if times > 0)
    return "".join(f"{kind} {times} {what}\n" for kind, what, times in lines)


def main() -> int:
    """Remove what was mended. The exit status is 1 if there are new violations."""
    allowed, counted = listed(LIST.read_text(encoding="utf-8")), count_violations()
    LIST.write_text(written(allowed & counted), encoding="utf-8")
    new = counted - allowed
    sys.stdout.write(written(new))
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
