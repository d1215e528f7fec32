"""Actions on the processes of a demonstration, triggered by keys or by a timed script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from penstock_core.vocabulary.errors import InvalidArgument

Verb = Literal["kill", "freeze", "thaw", "cut", "heal", "start"]
Kind = Literal["node", "engine"]

VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
MEMBERS: Final = 3
"""Number of nodes, and number of servers of the engine."""
# Both texts are parts of error messages.
_TARGETS: Final = (
    f"owner, engine leader, last (the previous target), and node or engine with a number up to "
    f"{MEMBERS}"
)
_EXAMPLE: Final = "an example of a script is '5:kill owner,12:cut engine 1,20:heal last'"


class ProcessTarget(NamedTuple):
    """One process, or a role (owner, leader) that is resolved when the action is executed."""

    kind: Kind
    number: int = 0
    """Number from 1 on; 0 means the owner among the nodes, or the leader among the engine's
    servers."""


LAST: Final = "last"
"""Name of the target of the previous action."""


class Action(NamedTuple):
    """A verb and its target; None is the target of the previous action."""

    verb: Verb
    target: ProcessTarget | None


class TimedAction(NamedTuple):
    """An action and its time in seconds after the start of the traffic."""

    at_s: float
    action: Action


_NAMED: Final[Mapping[str, ProcessTarget]] = {
    "owner": ProcessTarget("node"),
    "engine leader": ProcessTarget("engine"),
    **{f"node {number}": ProcessTarget("node", number) for number in range(1, MEMBERS + 1)},
    **{f"engine {number}": ProcessTarget("engine", number) for number in range(1, MEMBERS + 1)},
}
"""Targets by their name in a script."""


def script_of(text: str) -> list[TimedAction]:
    """Return the actions of a script, sorted by time. Raises ``InvalidArgument`` if the script is
    not valid."""
    steps = [step for step in text.split(",") if step.strip()]
    return sorted((_step(step) for step in steps), key=lambda timed: timed.at_s)


def _step(text: str) -> TimedAction:
    """Parse a step such as ``5:kill owner``."""
    time, colon, rest = text.partition(":")
    words = rest.split()
    if not colon or not words:
        raise InvalidArgument(f"{text.strip()!r} has no time and action: {_EXAMPLE}")
    return TimedAction(_seconds(time.strip(), text), _action(words, text))


def _seconds(time: str, text: str) -> float:
    """Parse the time of a step; ``text`` is the whole step, for the error."""
    try:
        at_s = float(time)
    except ValueError:
        at_s = -1.0
    # NaN also fails this comparison.
    if not 0 <= at_s < float("inf"):
        raise InvalidArgument(
            f"{time!r} in {text.strip()!r} is not a time; allowed are seconds from 0 on: {_EXAMPLE}"
        )
    return at_s


def _action(words: list[str], text: str) -> Action:
    """Parse the action of a step; ``text`` is the whole step, for the error."""
    word, name = words[0], " ".join(words[1:])
    verb = next((candidate for candidate in VERBS if candidate == word), None)
    if verb is None:
        raise InvalidArgument(
            f"{word!r} in {text.strip()!r} is not an action; allowed are {', '.join(VERBS)}: "
            f"{_EXAMPLE}"
        )
    if name == LAST:
        return Action(verb, None)
    if name not in _NAMED:
        raise InvalidArgument(
            f"{name!r} in {text.strip()!r} is not a process; allowed are {_TARGETS}: {_EXAMPLE}"
        )
    return Action(verb, _NAMED[name])
