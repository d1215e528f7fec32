"""Topics: names with levels separated by ``/``, and filters with wildcards (SEM F6).

The grammar is that of MQTT (4.7). Selectors and the MQTT front end both use this module.
"""

from __future__ import annotations

from typing import Final

TOPIC_BYTES_MAX: Final = 65_535
"""Maximum number of bytes of a topic name or filter."""
LEVELS_MAX: Final = 200
"""Maximum number of levels of a topic name or filter; each level takes some hundred bytes in topic
trees."""


def name_fault(name: str) -> str:
    """Return the fault of a topic name as a clause; empty if the name is valid."""
    if not name:
        return "a topic name must have at least one character"
    if "+" in name or "#" in name:
        return f"a topic name must have no wildcards, and {name[:80]!r} has"
    return _text_fault(name)


def filter_fault(text: str) -> str:
    """Return the fault of a topic filter as a clause; empty if the filter is valid."""
    if not text:
        return "a topic filter must have at least one character"
    levels = text.split("/") if "#" in text or "+" in text else ()
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            return f"in {text[:80]!r} the wildcard # must be the last level, and all of it"
        if "+" in level and level != "+":
            return f"in {text[:80]!r} the wildcard + must be all of its level"
    return _text_fault(text)


def _text_fault(text: str) -> str:
    """Return the reason why a text can be neither a topic nor a filter; empty if it can."""
    if "\0" in text:
        return "a topic must have no null character"
    if len(text.encode()) > TOPIC_BYTES_MAX:
        return f"a topic has at most {TOPIC_BYTES_MAX} bytes"
    if text.count("/") >= LEVELS_MAX:
        return f"a topic has at most {LEVELS_MAX} levels; {text[:80]!r} has more"
    return ""


def topic_matches(text: str, name: str) -> bool:
    """Whether the valid filter ``text`` matches a topic name. ``+`` matches any level; ``#``
    matches its parent level and any levels that follow. A name that begins with ``$`` needs a
    filter that begins with ``$``, too."""
    # MQTT 4.7.2: names that begin with $ are for the server, and # must not show them.
    if name.startswith("$") and text[:1] in ("+", "#"):
        return False
    filter_levels, levels = text.split("/"), name.split("/")
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(filter_levels) == len(levels)


def fixed_part(text: str) -> str:
    """Return the prefix of all names that a valid filter matches: the part before its first
    wildcard."""
    before_wildcard = text.partition("+")[0].partition("#")[0]
    # `a/#` also matches `a`, so the separator does not belong to the prefix.
    return (
        before_wildcard.removesuffix("/")
        if text[len(before_wildcard) :] == "#"
        else before_wildcard
    )


def has_wildcards(text: str) -> bool:
    """Whether a filter matches more than one name."""
    return "+" in text or "#" in text
