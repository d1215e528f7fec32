"""A slow and simple selector evaluation for one event at a time, which the evaluation by columns
must agree with. An event is a dictionary of Python values; None and an absent key are both unknown.
True, False and None are the three truth values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_core.columns.selectors.expressions import (
    And,
    Arithmetic,
    Between,
    Compare,
    Comparison,
    DataLength,
    DataText,
    Distance,
    Each,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Matches,
    Negative,
    Not,
    Now,
    Or,
    Reference,
    Step,
    Text,
    Truth,
)
from penstock_core.vocabulary.topics import topic_matches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILE = 1.609344
NAUTICAL_MILE = 1.852
KILOMETRES_PER_UNIT = {"K": 1.0, "M": MILE, "N": NAUTICAL_MILE}

TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
PREDICATES = (Compare, Between, In, Like, Matches, IsNull)


class Interpreter:
    """Evaluates a selector on one event, with the array elements that the current predicate is
    about."""

    def __init__(self, event: dict[str, Any], now_us: int = 0) -> None:
        self.event = event
        self.now_us = now_us
        self.chosen: dict[tuple[Step, ...], Any] = {}

    def holds(self, node: Expression) -> bool | None:
        match node:
            case And(operands):
                return conjunction(self.holds(operand) for operand in operands)
            case Or(operands):
                return disjunction(self.holds(operand) for operand in operands)
            case Not(operand):
                return opposite(self.holds(operand))
            case _:
                pass
        reference = searched(node)
        if reference is None:
            return self.predicate(node)
        start, steps = self.start(reference.steps)
        return self.search(reference.steps, start, steps, node=node)

    def search(
        self, name: tuple[Step, ...], start: Any, steps: tuple[Step, ...], node: Expression
    ) -> bool | None:
        cut = steps.index(Each())
        elements = follow(start, steps[:cut])
        if not isinstance(elements, list):
            return None
        rest = steps[cut + 1 :]
        answers = []
        for element in elements:
            if Each() in rest:
                answers.append(self.search(name, element, rest, node=node))
            else:
                outer = dict(self.chosen)
                self.chosen[name] = follow(element, rest)
                answers.append(self.predicate(node))
                self.chosen = outer
        return disjunction(answers)

    def predicate(self, node: Expression) -> bool | None:
        match node:
            case Compare(sign, left, right):
                return self.compare(sign, left, right)
            case Between(operand, low, high, negated):
                inside = conjunction(
                    [
                        self.compare(Comparison.AT_LEAST, operand, low),
                        self.compare(Comparison.AT_MOST, operand, high),
                    ]
                )
                return opposite(inside) if negated else inside
            case In(operand, options, negated):
                result = disjunction(
                    self.compare(Comparison.EQUAL, operand, option) for option in options
                )
                return opposite(result) if negated else result
            case Like(operand, pattern, escape, negated):
                text = self.value(operand)
                if not isinstance(text, str):
                    return None
                return fits(text, tokens(pattern, escape)) != negated
            case Matches(operand, text, negated):
                topic = self.value(operand)
                if not isinstance(topic, str):
                    return None
                return topic_matches(text, topic) != negated
            case IsNull(operand, negated):
                return (self.value(operand) is None) != negated
            case _:
                answer = self.value(node)
                return answer if isinstance(answer, bool) else None

    def compare(self, sign: Comparison, left: Expression, right: Expression) -> bool | None:
        one, right_value = self.value(left), self.value(right)
        if isinstance(one, datetime) and isinstance(right, Text):
            right_value = moment(right.value)
        if isinstance(right_value, datetime) and isinstance(left, Text):
            one = moment(left.value)
        if isinstance(one, datetime) != isinstance(right_value, datetime):
            one, right_value = number(one), number(right_value)
        if one is None or right_value is None or family(one) != family(right_value):
            return None
        if family(one) == "other" or (family(one) == "truth" and sign not in ("=", "<>")):
            return None
        return TESTS[sign](one, right_value)

    def value(self, node: Expression) -> Any:
        match node:
            case Text(value) | Integer(value) | Float(value) | Truth(value):
                return value
            case Reference(steps):
                return self.chosen[steps] if steps in self.chosen else self.lookup(steps)
            case Arithmetic(sign, left, right):
                return calculate(sign, number(self.value(left)), number(self.value(right)))
            case Negative(operand):
                operand_number = number(self.value(operand))
                return within(-operand_number) if operand_number is not None else None
            case Now():
                return self.now_us // 1000
            case Distance():
                return self.distance(node)
            case DataLength():
                return len(self.event["data"])
            case DataText(offset, length):
                return decoded(self.event["data"][offset : offset + length])
            case _:
                return self.holds(node)

    def lookup(self, steps: tuple[Step, ...]) -> Any:
        start, rest = self.start(steps)
        return follow(start, rest)

    def start(self, steps: tuple[Step, ...]) -> tuple[Any, tuple[Step, ...]]:
        headers: dict[str, Any] = self.event.get("headers") or {}
        published = self.event.get("published")
        persistent = self.event.get("persistent")
        named = {
            "event_id": self.event.get("event_id"),
            "tag": self.event.get("tag"),
            "published": published,
            "JMSMessageID": headers.get("message_id"),
            "JMSCorrelationID": headers.get("correlation_id"),
            "JMSType": headers.get("type"),
            "JMSPriority": 4 if self.event.get("priority") is None else self.event["priority"],
            "JMSTimestamp": number(published),
            "JMSDeliveryMode": delivery_mode(headers.get("delivery_mode"), persistent),
        }
        if steps[0] in named:
            return named[str(steps[0])], steps[1:]
        return self.event.get("properties"), steps

    def distance(self, node: Distance) -> float | None:
        latitude = self.lookup(("latitude",))
        longitude = self.lookup(("longitude",))
        for angle, most in ((latitude, 90), (longitude, 180)):
            if family(angle) != "number" or not abs(angle) <= most:
                return None
        one, latitude_radians = math.radians(node.latitude), math.radians(latitude)
        turn = math.radians(longitude) - math.radians(node.longitude)
        half = math.sin((latitude_radians - one) / 2) ** 2
        half += math.cos(one) * math.cos(latitude_radians) * math.sin(turn / 2) ** 2
        arc = 2 * math.asin(math.sqrt(min(1.0, half)))
        return 6371.0088 * arc / KILOMETRES_PER_UNIT[node.unit]


def delivery_mode(header: int | None, persistent: bool | None) -> str:
    if header in (1, 2):
        return "PERSISTENT" if header == 2 else "NON_PERSISTENT"
    return "NON_PERSISTENT" if persistent is False else "PERSISTENT"


def searched(node: Expression) -> Reference | None:
    """Return the reference to array elements among the operands of a predicate."""
    match node:
        case Reference(steps):
            return node if Each() in steps else None
        case Compare(_, left, right) | Arithmetic(_, left, right):
            parts: tuple[Expression, ...] = (left, right)
        case Between(operand, low, high):
            parts = (operand, low, high)
        case In(operand) | Like(operand) | Matches(operand) | IsNull(operand) | Negative(operand):
            parts = (operand,)
        case _:
            return None
    for part in parts:
        if not isinstance(part, PREDICATES):
            result = searched(part)
            if result is not None:
                return result
    return None


def follow(value: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        elif isinstance(step, int):
            inside = isinstance(value, list) and step < len(value)
            value = value[step] if inside else None
    return value


def conjunction(answers: Iterable[bool | None]) -> bool | None:
    outcomes = list(answers)
    if False in outcomes:
        return False
    return None if None in outcomes else True


def disjunction(answers: Iterable[bool | None]) -> bool | None:
    known_answers = list(answers)
    if True in known_answers:
        return True
    return None if None in known_answers else False


def opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def family(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "time" if isinstance(value, datetime) else "other"


def number(value: Any) -> int | float | None:
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    return value if family(value) == "number" else None


def within(value: int | float) -> int | float | None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def calculate(sign: str, left: int | float | None, right: int | float | None) -> int | float | None:
    if left is None or right is None:
        return None
    both_whole = isinstance(left, int) and isinstance(right, int)
    if not both_whole:
        left, right = float(left), float(right)
    if sign == "+":
        return within(left + right)
    if sign == "-":
        return within(left - right)
    if sign == "*":
        return within(left * right)
    if right == 0:
        return None
    if not both_whole:
        return left / right
    quotient = abs(left) // abs(right)
    return within(quotient if (left < 0) == (right < 0) else -quotient)


def moment(text: str) -> datetime | None:
    try:
        result = datetime.fromisoformat(text)
    except ValueError:
        return None
    return result.replace(tzinfo=UTC) if result.tzinfo is None else result


def decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def tokens(pattern: str, escape: str) -> list[tuple[str, bool]]:
    """Return the characters of a pattern, each with whether it is a wildcard."""
    characters = []
    rest = iter(pattern)
    for character in rest:
        if escape and character == escape:
            characters.append((next(rest), False))
        else:
            characters.append((character, character in "%_"))
    return characters


def fits(text: str, pattern: list[tuple[str, bool]]) -> bool:
    if not pattern:
        return not text
    (character, is_wildcard), rest = pattern[0], pattern[1:]
    if is_wildcard and character == "%":
        return any(fits(text[start:], rest) for start in range(len(text) + 1))
    if not text:
        return False
    return (is_wildcard or text[0] == character) and fits(text[1:], rest)
