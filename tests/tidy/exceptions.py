"""What the rules of ``test_exceptions.py`` do not allow and is there all the same.

``exceptions.txt`` has a line for each: its kind, how often, and what. It may only get shorter.
``python -m tests.tidy.exceptions`` takes out what is mended; it never puts anything in.
"""

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
"""Letters of a docstring that tell it from others."""

_MAY_OPEN = re.compile(r"""["']\s*(?:The same|Of )""")

Exceptions = Counter[tuple[str, str]]
"""How often, by kind and what."""


def found() -> Exceptions:
    """What the rules find in the files as they are."""
    exceptions = Exceptions()
    for name, modules in shape.repeated_classes(sources()).items():
        exceptions[CLASS, name] = len(modules)
    for module in shape.fragments(sources()):
        exceptions[FRAGMENT, module] = 1
    for opening in opened():
        exceptions[DOCSTRING, opening] += 1
    return exceptions


def opened() -> Iterator[str]:
    """The beginning of each docstring that begins as none should."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if _MAY_OPEN.search(path.read_text(encoding="utf-8")):
                for node in documentation(parsed(path)):
                    text = str(node.value).strip()
                    if text.startswith(OPENINGS):
                        yield text.partition("\n")[0][:SHOWN].strip()


def listed(text: str) -> Exceptions:
    """A list as it is written. Of two lines for one thing the smaller number counts."""
    exceptions = Exceptions()
    for line in text.splitlines():
        kind, times, what = line.split(" ", 2)
        known = exceptions.get((kind, what), int(times))
        exceptions[kind, what] = min(known, int(times))
    return exceptions


def written(exceptions: Exceptions) -> str:
    """A list as ``listed`` reads it."""
    lines = sorted((kind, what, times) for (kind, what), times in exceptions.items() if times > 0)
    return "".join(f"{kind} {times} {what}\n" for kind, what, times in lines)


def main() -> int:
    """Take out what is mended. The exit status: 1 where something is new."""
    allowed, there = listed(LIST.read_text(encoding="utf-8")), found()
    LIST.write_text(written(allowed & there), encoding="utf-8")
    new = there - allowed
    sys.stdout.write(written(new))
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
