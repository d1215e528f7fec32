"""Parses expressions that begin with a name: references, header names, functions (SEM F1-F3)."""

from __future__ import annotations

from typing import Final

from penstock_core.columns.selectors.expressions import (
    DataLength,
    DataText,
    Distance,
    DistanceUnit,
    Each,
    Expression,
    Now,
    Reference,
    Step,
)
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.reader import TokenReader
from penstock_core.columns.selectors.tokens import Token, TokenKind

_FUNCTIONS: Final = (  # for the error about an unknown function
    "NOW(), DISTANCE(), EVENTDATA.LENGTH(), EVENTDATA.AS_STRING() or EVENTDATA.TAG()"
)
_INDEX_MAX: Final = (1 << 31) - 1
"""Largest index of a list element or a byte. Arrow's lists and binary values have offsets of 32
bits, so a larger number has the same effect."""


def read_name(reader: TokenReader) -> Expression:
    """Parse the reference or function call that is next."""
    first = reader.advance()
    steps: list[Step] = [first.text]
    while True:
        if reader.accept("."):
            steps.append(_child(reader))
        elif reader.accept("["):
            steps.append(_element(reader))
        elif reader.is_next("("):
            return _call(reader, first, steps)
        else:
            _check_header(reader, first)
            return Reference(tuple(steps))


def _child(reader: TokenReader) -> str:
    """Parse the name after a dot."""
    if reader.token.kind not in (TokenKind.NAME, TokenKind.KEYWORD):
        raise reader.fault("a name after '.'")
    return reader.written(reader.advance())


def _element(reader: TokenReader) -> Step:
    """Parse the index of an array element, or ``]`` for any element."""
    index = reader.token
    if reader.accept("]"):
        return Each()
    if index.kind is not TokenKind.INTEGER:
        raise reader.fault("an index from 0 on, or ']' for any element")
    reader.advance()
    reader.expect("]")
    return min(int(index.value), _INDEX_MAX)


def _check_header(reader: TokenReader, name: Token) -> None:
    text = name.text
    if text.startswith("JMS") and not text.startswith(("JMSX", "JMS_")) and text not in HEADERS:
        allowed = ", ".join(header for header in HEADERS if header.startswith("JMS"))
        raise reader.fault(f"a header selectors can see ({allowed})", name)


def _call(reader: TokenReader, first: Token, steps: list[Step]) -> Expression:
    """Parse the arguments of a function. Raises ``InvalidSelector`` for an unknown function."""
    name = ".".join(map(str, steps)).upper()
    reader.advance()
    match name:
        case "NOW":
            expression: Expression = Now()
        case "DISTANCE":
            expression = _distance(reader)
        case "EVENTDATA.LENGTH":
            expression = DataLength()
        case "EVENTDATA.AS_STRING":
            offset = _size(reader, "the offset of the first byte")
            reader.expect(",")
            expression = DataText(offset, _size(reader, "the number of bytes"))
        case "EVENTDATA.TAG":
            expression = Reference(("tag",))
        case _:
            raise reader.fault(_FUNCTIONS, first, f"'{'.'.join(map(str, steps))}()'")
    reader.expect(")")
    return expression


def _size(reader: TokenReader, expected: str) -> int:
    """Parse a whole number from 0 on. ``expected`` describes it in the error."""
    if reader.token.kind is not TokenKind.INTEGER:
        raise reader.fault(f"{expected}, a whole number from 0 on")
    return min(int(reader.advance().value), _INDEX_MAX)


def _distance(reader: TokenReader) -> Distance:
    """Parse the arguments of ``DISTANCE()``."""
    latitude = _angle(reader, 90)
    reader.expect(",")
    longitude = _angle(reader, 180)
    reader.expect(",")
    unit = reader.token
    if unit.kind is not TokenKind.NAME or unit.text.upper() not in tuple(DistanceUnit):
        raise reader.fault("a unit: K (kilometres), M (miles) or N (nautical miles)")
    reader.advance()
    return Distance(latitude, longitude, DistanceUnit(unit.text.upper()))


def _angle(reader: TokenReader, limit: int) -> float:
    """Parse an angle in degrees between ``-limit`` and ``limit``."""
    sign = -1.0 if reader.accept("-") else 1.0
    number = reader.token
    degrees = number.value
    if (
        number.kind not in (TokenKind.INTEGER, TokenKind.FLOAT)
        or isinstance(degrees, str)
        or degrees > limit
    ):
        raise reader.fault(f"degrees from -{limit} to {limit}")
    reader.advance()
    return sign * degrees
