"""Messages about wrong arguments, in terms of the argument.

msgspec says ``Expected `int`, got `str` - at `$.capacity` ``. A user reads "capacity must be an
integer, not 'many'", whether the value came from Python, over HTTP, or from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_Vocabulary = Mapping[str, str]

JSON: Final[_Vocabulary] = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "bytes": "base64 text",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "datetime": "a time",
    "field": "field",
}
"""The kinds of values by the names JSON has for them."""
PYTHON: Final[_Vocabulary] = {
    **JSON,
    "bool": "True or False",
    "bytes": "bytes",
    "object": "a dictionary",
    "null": "None",
}
"""The kinds of values by the names Python has for them."""
TOML: Final[_Vocabulary] = {**JSON, "object": "a table", "null": "", "field": "key"}
"""The kinds of values by the names TOML has for them; it has no null."""

ABSENT: Final = object()
"""Stands for a value that is not known."""

_SHOWN: Final = 80
"""Most characters of a value in a message."""
_SECRET: Final = re.compile(r"password|token|secret|\bold$", re.IGNORECASE)
"""Arguments whose values are not repeated."""
_AT: Final = re.compile(r"(?s)(.*) - at (`key` in )?`\$(.*)`")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNNAMED: Final = "..."


def decode_json(
    content: bytes, kind: type[T], *, whole: str, refuse: Callable[[str], Exception]
) -> T:
    """Decode a document in JSON. Raises what ``refuse`` makes of the reason; ``whole`` names the
    document in it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(explain(error, whole=whole)) from error


def explain(
    fault: Exception,
    given: object = ABSENT,
    *,
    kind: Any = None,
    whole: str = "the value",
    words: _Vocabulary = JSON,
) -> str:
    """Say what is wrong and what would be right, as a clause that begins with the argument.

    ``fault`` is the error of decoding, ``given`` the decoded value, ``kind`` the type that was
    expected (it provides the allowed words), and ``whole`` the name of the value for a fault in no
    part of it.
    """
    if isinstance(fault, UnicodeDecodeError):
        return f"{whole} must be UTF-8 ({fault.reason} at byte {fault.start})"
    if isinstance(fault, RecursionError):
        return f"{whole} is nested too deep"
    text = str(fault)
    if text == "Input data was truncated":
        return f"{whole} ends too early, or a string in it has half of a surrogate pair"
    found = _AT.fullmatch(text)
    what, is_key, path = (found[1], found[2], found[3]) if found else (text, None, "")
    steps = [name or at for name, at in _STEP.findall(path)]
    subject = _subject(steps, whole, is_key=bool(is_key))
    value = ABSENT if is_key else _value_at(given, steps)
    told = _Told(subject, _shown(subject, value, words), _kinds_at(kind, steps), words=words)
    for pattern, sentence in _FAULTS:
        if (fits := pattern.fullmatch(what)) is not None:
            return sentence(told, fits)
    is_name = what.startswith(("JSON", "MessagePack"))
    return f"{subject}: {what if is_name else what[:1].lower() + what[1:]}"


@dataclass(frozen=True, slots=True)
class _Told:
    """A wrong value, with the sentences that can be made about it."""

    subject: str
    shown: str
    """The value, or nothing where it may not be repeated."""
    kinds: Sequence[Any]
    """The types that are allowed there, as msgspec describes them."""
    words: _Vocabulary

    def wrong_kind(self, found: re.Match[str]) -> str:
        names = [self.words.get(each, each) for each in found[1].split(" | ")]
        wanted = _listed(self._choices() or [name for name in names if name])
        has = self.shown or (self.words.get(found[2], found[2]) if found[2] else "")
        return f"{self.subject} must be {wanted}" + (f", not {has}" if has else "")

    def wrong_word(self, found: re.Match[str]) -> str:
        choices = _listed(self._choices()) or "another value"
        return f"{self.subject} must be {choices}, not {self.shown or found[1]}"

    def out_of_bounds(self, found: re.Match[str]) -> str:
        has = f", not {self.shown}" if self.shown else ""
        return f"{self.subject} must be {_BOUNDS[found[1]]}{found[2]}{has}"

    def wrong_length(self, found: re.Match[str]) -> str:
        one, many = _COUNTED.get(found[1], ("entry", "entries"))
        has = f", not {found[4]}" if found[4] else ""
        counted = f"{found[3]} {one if found[3] == '1' else many}"
        return f"{self.subject} must have {_BOUNDS[found[2]]}{counted}{has}"

    def wrong_form(self, found: re.Match[str]) -> str:
        has = f", not {self.shown}" if self.shown else ""
        return f"{self.subject} must {_FORMS.get(found[0]) or f'match {found[1]}'}{has}"

    def unknown_field(self, found: re.Match[str]) -> str:
        fields = [
            field.encode_name
            for kind in self.kinds
            if isinstance(kind, msgspec.inspect.StructType)
            for field in kind.fields
        ]
        there_are = f"; there are {', '.join(fields)}" if fields else ""
        return f"{self.subject} has no {self.words['field']} {found[1]!r}{there_are}"

    def missing_field(self, found: re.Match[str]) -> str:
        return f"{self.subject} needs the {self.words['field']} {found[1]!r}, which is missing"

    def _choices(self) -> list[str]:
        literals = (kind for kind in self.kinds if isinstance(kind, msgspec.inspect.LiteralType))
        return [repr(value) for kind in literals for value in kind.values]


_BOUNDS: Final[Mapping[str | None, str]] = {
    ">=": "at least ",
    "<=": "at most ",
    ">": "more than ",
    "<": "less than ",
    None: "",
}
_COUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "str": ("character", "characters"),
    "bytes": ("byte", "bytes"),
}
_FORMS: Final[Mapping[str, str]] = {
    "Invalid RFC3339 encoded datetime": "be a time such as 2026-05-04T12:00:00Z",
    "Invalid base64 encoded string": "be base64 text",
}
_FAULTS: Final[Sequence[tuple[re.Pattern[str], Callable[[_Told, re.Match[str]], str]]]] = (
    (
        re.compile(r"Expected `(\w+)` of length (?:(>=|<=) )?(\d+)(?:, got (\d+))?"),
        _Told.wrong_length,
    ),
    (re.compile(r"Expected `([\w |]+)`(?:, got `(\w+)`)?"), _Told.wrong_kind),
    (re.compile(r"Expected `\w+` (>=|<=|>|<) (-?[\d.]+)"), _Told.out_of_bounds),
    (re.compile(r"Expected `str` matching regex (.*)"), _Told.wrong_form),
    (re.compile("|".join(f"({form})" for form in _FORMS)), _Told.wrong_form),
    (re.compile(r"Invalid enum value (.*)"), _Told.wrong_word),
    (re.compile(r"Object contains unknown field `(.*)`"), _Told.unknown_field),
    (re.compile(r"Object missing required field `(.*)`"), _Told.missing_field),
)
"""Phrases of msgspec, with their replacements."""


def _subject(steps: Sequence[str], whole: str, *, is_key: bool) -> str:
    place = ""
    for step in steps:
        if step == _UNNAMED:
            continue
        place += f"[{step}]" if step.isdigit() else f".{step}" if place else step
    if is_key:
        return f"a key of {place or whole}"
    if steps and steps[-1] == _UNNAMED:
        return f"a value of {place or whole}"
    return place or whole


def _listed(options: Sequence[str]) -> str:
    *others, last = options or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _shown(subject: str, value: object, words: _Vocabulary) -> str:
    """The value for a message; empty if only its type is named."""
    if value is ABSENT or _SECRET.search(subject):
        return ""
    if value is None:
        return words["null"]
    if isinstance(value, bool) and words is not PYTHON:
        return str(value).lower()
    if not isinstance(value, str | int | float):
        return ""
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}…"


def _value_at(given: object, steps: Sequence[str]) -> object:
    for step in steps:
        if isinstance(given, Mapping) and step != _UNNAMED:
            given = given.get(step, ABSENT)
        elif isinstance(given, list | tuple) and step.isdigit() and int(step) < len(given):
            given = given[int(step)]
        else:
            return ABSENT
    return given


def _kinds_at(kind: Any, steps: Sequence[str]) -> Sequence[Any]:
    """The types that may stand at a place below a type; none where the type is not known."""
    if kind is None:
        return ()
    found = [msgspec.inspect.type_info(kind)]
    for step in steps:
        found = [inner for each in found for inner in _inside(each, step)]
    return [option for each in found for option in _options(each)]


def _inside(kind: Any, step: str) -> Iterator[Any]:
    for each in _options(kind):
        if isinstance(each, msgspec.inspect.StructType):
            yield from (field.type for field in each.fields if field.encode_name == step)
        elif isinstance(each, msgspec.inspect.DictType):
            yield each.value_type
        elif isinstance(each, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            yield each.item_type


def _options(kind: Any) -> Iterator[Any]:
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            yield from _options(each)
    else:
        yield kind
