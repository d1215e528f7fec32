"""Templates of topics: which topics of MQTT are a channel's own, and what their levels are called
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
"""The property with an event's topic, which no level of a template may be called."""
TEMPLATES_MAX: Final = 100
"""Most templates of one channel."""
TEMPLATE_CHARACTERS_MAX: Final = NAME_CHARACTERS_MAX
"""Longest template in characters."""
TEMPLATES_KEPT_MAX: Final = 1_024
"""Parsed templates kept by the process."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Template(NamedTuple):
    """A topic filter with names for some of its levels."""

    text: str
    filter: str
    names: tuple[tuple[int, str], ...]
    """The named levels, by their place."""

    def levels_of(self, topic: str) -> dict[str, str] | None:
        """The named levels of a topic; None: the template does not take it."""
        if not topic_matches(self.filter, topic):
            return None
        levels = topic.split("/")
        return {name: levels[at] for at, name in self.names}

    def topic_of(self, properties: Mapping[str, Any]) -> str | None:
        """The topic that has these properties as its levels. None: one of them is missing or can
        be no level of a topic, or the template has levels without a name."""
        if self.filter.count("+") > len(self.names) or self.filter.endswith("#"):
            return None
        levels = self.filter.split("/")
        for at, name in self.names:
            value = properties.get(name)
            if not isinstance(value, str) or "/" in value:
                return None
            levels[at] = value
        topic = "/".join(levels)
        return None if name_fault(topic) else topic


@lru_cache(maxsize=TEMPLATES_KEPT_MAX)
def template_of(text: str) -> Template:
    """Raises ``InvalidArgument`` for what is no template."""
    levels, names = text.split("/"), list[tuple[int, str]]()
    for at, level in enumerate(levels):
        if "{" not in level and "}" not in level:
            continue
        name = level[1:-1]
        if level[:1] != "{" or level[-1:] != "}" or not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"the topic {text!r} has a level {level!r}; a name for a level is all of it, of "
                f"letters, digits and _, such as plant/{{line}}/temp"
            )
        if name == TOPIC or name in [known for _, known in names]:
            why = "is the whole topic's" if name == TOPIC else "is there twice"
            raise InvalidArgument(f"in the topic {text!r} the name {name!r} {why}; choose another")
        names.append((at, name))
        levels[at] = "+"
    wanted = "/".join(levels)
    if fault := filter_fault(wanted):
        raise InvalidArgument(f"{text!r} is no topic filter: {fault}")
    if wanted.startswith("$"):
        raise InvalidArgument(
            f"{text!r} begins with $, and topics that do are the realm's own; leave it out"
        )
    return Template(text, wanted, tuple(names))


def templates_of(texts: Iterable[str]) -> tuple[Template, ...]:
    """Raises ``InvalidArgument`` for what is no template, and for two with one filter."""
    found: dict[str, Template] = {}
    for text in texts:
        if len(text) > TEMPLATE_CHARACTERS_MAX:
            raise InvalidArgument(
                f"the topic {text[:40]!r}... has {len(text)} characters; a topic of a channel has "
                f"at most {TEMPLATE_CHARACTERS_MAX}: cover the rest with #"
            )
        made = template_of(text)
        if made.filter in found:
            raise InvalidArgument(
                f"the topics {found[made.filter].text!r} and {text!r} are one filter, "
                f"{made.filter!r}; give it once"
            )
        found[made.filter] = made
    if len(found) > TEMPLATES_MAX:
        raise InvalidArgument(f"a channel has at most {TEMPLATES_MAX} topics, not {len(found)}")
    return tuple(found.values())


def specificity(wanted: str) -> tuple[int, ...]:
    """What filters that take one topic are ordered by, the most specific first: a literal level
    before ``+``, and that before ``#``, from the first level on."""
    ranks = {"+": 1, "#": 2}
    return tuple(ranks.get(level, 0) for level in wanted.split("/"))


def may_meet(one: str, other: str) -> bool:
    """Whether there are topics that both filters take."""
    ours, theirs = one.split("/"), other.split("/")
    for at in range(max(len(ours), len(theirs))):
        mine = ours[at] if at < len(ours) else None
        its = theirs[at] if at < len(theirs) else None
        if "#" in (mine, its):
            return True
        if mine is None or its is None:
            return False
        if mine != its and "+" not in (mine, its):
            return False
    return True


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that ``narrow`` takes is taken by ``wide``."""
    if narrow.startswith("$") and wide[:1] in ("+", "#"):
        return False
    ours, theirs = wide.split("/"), narrow.split("/")
    for at, level in enumerate(ours):
        if level == "#":
            return True
        if at >= len(theirs) or theirs[at] == "#":
            return False
        if level not in ("+", theirs[at]):
            return False
    return len(ours) == len(theirs)


def selector_of(wanted: str, templates: Sequence[Template]) -> str:
    """The selector that takes the events of a channel whose topics the filter takes, also of those
    that have no property ``topic`` and get their topic from their levels."""
    own = (_levels_match(wanted, each) for each in templates)
    parts = [_matches(wanted)]
    parts += [f"{TOPIC} IS NULL{each}" for each in own if each is not None]
    return parts[0] if len(parts) == 1 else " OR ".join(f"({each})" for each in parts)


def _matches(wanted: str) -> str:
    is_wild = "+" in wanted or "#" in wanted
    return f"{TOPIC} {'MATCHES' if is_wild else '='} {_quoted(wanted)}"


def _levels_match(wanted: str, template: Template) -> str | None:
    """The condition on the named levels; None: no event has such a topic by this template."""
    if template.filter.count("+") > len(template.names) or template.filter.endswith("#"):
        return None
    if not may_meet(wanted, template.filter):
        return None
    levels, found = wanted.split("/"), list[str]()
    for at, name in template.names:
        word = levels[at] if at < len(levels) else "#"
        if "#" in levels[:at] or word in ("+", "#"):
            found.append(f" AND {name} IS NOT NULL")
        else:
            found.append(f" AND {name} = {_quoted(word)}")
    return "".join(found)


def _quoted(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
