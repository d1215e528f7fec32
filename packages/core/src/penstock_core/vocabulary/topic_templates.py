"""Topic templates: the MQTT topics that belong to a channel, and the names of their levels
(SEM M12).

``plant/{site}/{line}/temp`` is the filter ``plant/+/+/temp`` with names for two of its levels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from penstock_core.bounds import NAME_CHARACTERS_MAX
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.topics import filter_fault, name_fault, topic_matches

TOPIC: Final = "topic"
"""The property with an event's topic; levels of templates cannot have this name."""
TEMPLATES_MAX: Final = 100
"""Maximum number of templates of one channel."""
TEMPLATE_CHARACTERS_MAX: Final = NAME_CHARACTERS_MAX
"""Maximum number of characters of a template."""
TEMPLATES_KEPT_MAX: Final = 1_024
"""Parsed templates kept by the process."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Template(NamedTuple):
    """A topic filter with names for some of its levels."""

    text: str
    filter: str
    names: tuple[tuple[int, str], ...]
    """Indexes and names of the named levels."""

    def levels_of(self, topic: str) -> dict[str, str] | None:
        """Return the values of the named levels of a topic; None if the template does not match the
        topic."""
        if not topic_matches(self.filter, topic):
            return None
        levels = topic.split("/")
        return {name: levels[index] for index, name in self.names}

    def topic_of(self, properties: Mapping[str, Any]) -> str | None:
        """Return the topic that has these properties as its levels. Return None if a property is
        missing or cannot be a level of a topic, or if the template has wildcards without a name."""
        if self.filter.count("+") > len(self.names) or self.filter.endswith("#"):
            return None
        levels = self.filter.split("/")
        for index, name in self.names:
            value = properties.get(name)
            if not isinstance(value, str) or "/" in value:
                return None
            levels[index] = value
        # A property may have characters that a topic must not have, such as wildcards.
        topic = "/".join(levels)
        return None if name_fault(topic) else topic


@lru_cache(maxsize=TEMPLATES_KEPT_MAX)
def template_of(text: str) -> Template:
    """Parse a template. Raises ``InvalidArgument`` if it is not valid."""
    levels, names = text.split("/"), list[tuple[int, str]]()
    for index, level in enumerate(levels):
        if "{" not in level and "}" not in level:
            continue
        name = level[1:-1]
        if level[:1] != "{" or level[-1:] != "}" or not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"the topic {text!r} has a level {level!r}; a name for a level is all of it, of "
                f"letters, digits and _, such as plant/{{line}}/temp"
            )
        if name == TOPIC or name in [earlier for _, earlier in names]:
            fault_of_name = "is the whole topic's" if name == TOPIC else "is there twice"
            raise InvalidArgument(
                f"in the topic {text!r} the name {name!r} {fault_of_name}; choose another"
            )
        names.append((index, name))
        levels[index] = "+"
    filter_text = "/".join(levels)
    if fault := filter_fault(filter_text):
        raise InvalidArgument(f"{text!r} is not a topic filter: {fault}")
    if filter_text.startswith("$"):
        raise InvalidArgument(
            f"{text!r} begins with $; such topics are reserved for the realm, leave it out"
        )
    return Template(text, filter_text, tuple(names))


def templates_of(texts: Iterable[str]) -> tuple[Template, ...]:
    """Parse templates. Raises ``InvalidArgument`` if one is not valid, or if two have the same
    filter."""
    by_filter: dict[str, Template] = {}
    for text in texts:
        if len(text) > TEMPLATE_CHARACTERS_MAX:
            raise InvalidArgument(
                f"the topic {text[:40]!r}... has {len(text)} characters; a topic of a channel has "
                f"at most {TEMPLATE_CHARACTERS_MAX}: cover the rest with #"
            )
        template = template_of(text)
        if template.filter in by_filter:
            raise InvalidArgument(
                f"the topics {by_filter[template.filter].text!r} and {text!r} are the "
                f"same filter, {template.filter!r}; list only one of them"
            )
        by_filter[template.filter] = template
    if len(by_filter) > TEMPLATES_MAX:
        raise InvalidArgument(f"a channel has at most {TEMPLATES_MAX} topics, not {len(by_filter)}")
    return tuple(by_filter.values())


def specificity(filter_text: str) -> tuple[int, ...]:
    """Return a sort key for filters that match one topic, the most specific first: from the first
    level on, a literal level precedes ``+``, which precedes ``#``."""
    ranks = {"+": 1, "#": 2}
    return tuple(ranks.get(level, 0) for level in filter_text.split("/"))


def may_meet(first_filter: str, second_filter: str) -> bool:
    """Whether some topic matches both filters."""
    first_levels, second_levels = first_filter.split("/"), second_filter.split("/")
    for index in range(max(len(first_levels), len(second_levels))):
        first_level = first_levels[index] if index < len(first_levels) else None
        second_level = second_levels[index] if index < len(second_levels) else None
        # `#` also matches the level above it, so the other filter may have ended (MQTT 4.7.1.2).
        if "#" in (first_level, second_level):
            return True
        if first_level is None or second_level is None:
            return False
        if first_level != second_level and "+" not in (first_level, second_level):
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that matches ``narrow`` also matches ``wide``."""
    # A wildcard at the beginning does not match topics that begin with $ (MQTT 4.7.2).
    if narrow.startswith("$") and wide[:1] in ("+", "#"):
        return False
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    for index, level in enumerate(wide_levels):
        # `#` also matches the level above it, so `narrow` may have ended (MQTT 4.7.1.2).
        if level == "#":
            return True
        if index >= len(narrow_levels) or narrow_levels[index] == "#":
            return False
        if level not in ("+", narrow_levels[index]):
            return False
    return len(wide_levels) == len(narrow_levels)


def selector_of(filter_text: str, templates: Sequence[Template]) -> str:
    """Return the selector for the events of a channel whose topics match the filter, including
    events without the property ``topic``, whose topic is built from their levels."""
    conditions = (_levels_match(filter_text, template) for template in templates)
    parts = [_matches(filter_text)]
    parts += [f"{TOPIC} IS NULL{condition}" for condition in conditions if condition is not None]
    return parts[0] if len(parts) == 1 else " OR ".join(f"({part})" for part in parts)


def _matches(filter_text: str) -> str:
    """Return the predicate that the property ``topic`` matches a filter."""
    is_wild = "+" in filter_text or "#" in filter_text
    return f"{TOPIC} {'MATCHES' if is_wild else '='} {_quoted(filter_text)}"


def _levels_match(filter_text: str, template: Template) -> str | None:
    """Return the condition that events without the property ``topic`` must meet for the filter;
    None if no topic of the template matches the filter."""
    if template.filter.count("+") > len(template.names) or template.filter.endswith("#"):
        return None
    if not may_meet(filter_text, template.filter):
        return None
    levels, conditions = filter_text.split("/"), list[str]()
    for index, name in template.names:
        level = levels[index] if index < len(levels) else "#"
        # Behind # any level matches, but the topic must have one.
        if "#" in levels[:index] or level in ("+", "#"):
            conditions.append(f" AND {name} IS NOT NULL")
        else:
            conditions.append(f" AND {name} = {_quoted(level)}")
    return "".join(conditions)


def _quoted(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
