"""Topics: names in levels with ``/`` between them, and filters with wildcards (SEM F6).

The grammar is that of MQTT (4.7). Selectors and the MQTT front end have it from here.
"""

from __future__ import annotations

from typing import Final

TOPIC_BYTES_MAX: Final = 65_535
"""Most bytes of a topic name or filter."""
LEVELS_MAX: Final = 200
"""Most levels of a topic name or filter: each takes some hundred bytes in the trees of them."""


def name_fault(name: str) -> str:
    """What is wrong with a topic name; empty: nothing."""
    if not name:
        return "a topic name must have at least one character"
    if "+" in name or "#" in name:
        return f"a topic name must have no wildcards, and {name[:80]!r} has"
    return _text_fault(name)


def filter_fault(text: str) -> str:
    """What is wrong with a topic filter; empty: nothing."""
    if not text:
        return "a topic filter must have at least one character"
    levels = text.split("/") if "#" in text or "+" in text else ()
    for at, level in enumerate(levels):
        if "#" in level and (level != "#" or at != len(levels) - 1):
            return f"in {text[:80]!r} the wildcard # must be the last level, and all of it"
        if "+" in level and level != "+":
            return f"in {text[:80]!r} the wildcard + must be all of its level"
    return _text_fault(text)


def _text_fault(text: str) -> str:
    if "\0" in text:
        return "a topic must have no null character"
    if len(text.encode()) > TOPIC_BYTES_MAX:
        return f"a topic has at most {TOPIC_BYTES_MAX} bytes"
    if text.count("/") >= LEVELS_MAX:
        return f"a topic has at most {LEVELS_MAX} levels; {text[:80]!r} has more"
    return ""


def topic_matches(text: str, name: str) -> bool:
    """Whether a right filter takes a topic name: ``+`` any level, ``#`` any that follow, and the
    one before them. A name that begins with ``$`` needs a filter that begins so, too."""
    if name.startswith("$") and text[:1] in ("+", "#"):
        return False
    wanted, levels = text.split("/"), name.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


def fixed_part(text: str) -> str:
    """What every name begins with that a right filter takes: all before the first wildcard."""
    before = text.partition("+")[0].partition("#")[0]
    return before.removesuffix("/") if text[len(before) :] == "#" else before


def has_wildcards(text: str) -> bool:
    """Whether a filter takes more than one name."""
    return "+" in text or "#" in text
