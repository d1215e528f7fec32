"""What is done to the processes of a demonstration: by keys, or by a script with times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from penstock_core.vocabulary.errors import InvalidArgument

Verb = Literal["kill", "freeze", "thaw", "cut", "heal", "start"]
Kind = Literal["node", "engine"]

VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
MEMBERS: Final = 3
"""Nodes, and as many servers of the engine."""
_TARGETS: Final = (
    f"owner, engine leader, last (the one before), or node or engine with a number up to {MEMBERS}"
)
_LOOKS_LIKE: Final = "a script looks like '5:kill owner,12:cut engine 1,20:heal last'"


class ProcessTarget(NamedTuple):
    """One process, or whichever one has a part when the time has come."""

    kind: Kind
    number: int = 0
    """From 1 on; 0: the node that is the owner, the engine's server that leads."""


LAST: Final = "last"
"""What was acted on before."""


class Action(NamedTuple):
    """One thing to do; ``target`` is None for the process that was acted on before."""

    verb: Verb
    target: ProcessTarget | None


class TimedAction(NamedTuple):
    """An action, so many seconds after the traffic has begun."""

    at_s: float
    action: Action


_NAMED: Final[Mapping[str, ProcessTarget]] = {
    "owner": ProcessTarget("node"),
    "engine leader": ProcessTarget("engine"),
    **{f"node {number}": ProcessTarget("node", number) for number in range(1, MEMBERS + 1)},
    **{f"engine {number}": ProcessTarget("engine", number) for number in range(1, MEMBERS + 1)},
}


def script_of(text: str) -> list[TimedAction]:
    """The actions of a script, in the order of their times. Raises ``InvalidArgument``."""
    steps = [step for step in text.split(",") if step.strip()]
    return sorted((_step(step) for step in steps), key=lambda timed: timed.at_s)


def _step(text: str) -> TimedAction:
    time, colon, rest = text.partition(":")
    words = rest.split()
    if not colon or not words:
        raise InvalidArgument(f"{text.strip()!r} has no time and action: {_LOOKS_LIKE}")
    return TimedAction(_seconds(time.strip(), text), _action(words, text))


def _seconds(time: str, text: str) -> float:
    try:
        at_s = float(time)
    except ValueError:
        at_s = -1.0
    if not 0 <= at_s < float("inf"):
        raise InvalidArgument(
            f"{time!r} in {text.strip()!r} is no number of seconds, 0 or more: {_LOOKS_LIKE}"
        )
    return at_s


def _action(words: list[str], text: str) -> Action:
    verb, name = words[0], " ".join(words[1:])
    known = next((each for each in VERBS if each == verb), None)
    if known is None:
        raise InvalidArgument(
            f"{verb!r} in {text.strip()!r} is nothing that can be done; there are "
            f"{', '.join(VERBS)}: {_LOOKS_LIKE}"
        )
    if name == LAST:
        return Action(known, None)
    if name not in _NAMED:
        raise InvalidArgument(
            f"{name!r} in {text.strip()!r} names no process; there are {_TARGETS}: {_LOOKS_LIKE}"
        )
    return Action(known, _NAMED[name])
