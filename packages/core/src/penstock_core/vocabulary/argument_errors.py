"""Error texts about wrong arguments, in terms of the argument.

msgspec reports ``Expected `int`, got `str` - at `$.capacity` ``. A user reads "capacity must be an
integer, not 'many'", whether the value came from Python, over HTTP, or from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Names of the types of values in JSON, by msgspec's name."""
PYTHON: Final[_Vocabulary] = {
    **JSON,
    "bool": "True or False",
    "bytes": "bytes",
    "object": "a dictionary",
    "null": "None",
}
"""Names of the types of values in Python, by msgspec's name."""
TOML: Final[_Vocabulary] = {**JSON, "object": "a table", "null": "", "field": "key"}
"""Names of the types of values in TOML, by msgspec's name; TOML has no null."""

ABSENT: Final = object()
"""Stands for a value that is not known; None may be a value itself."""

_SHOWN: Final = 80
"""Maximum number of characters of a value that a message shows."""
# These forms are compiled at the first error, not at each start.
_SECRET: Final = r"(?i)password|token|secret|\bold$"
"""Names of arguments whose values must not appear in a message."""
_AT: Final = r"(?s)(.*) - at (`key` in )?`\$(.*)`"
"""A message of msgspec: the fault, whether it is about a key, and the path of the value."""
_STEP: Final = r"\.([^.\[]+)|\[(\d+|\.\.\.)\]"
"""One step of the path in a message of msgspec: a field, or an index."""
_UNNAMED: Final = "..."
"""A step of a path to some value of a dictionary, whose key msgspec does not name."""


def decode_json(
    content: bytes, kind: type[T], *, whole: str, refuse: Callable[[str], Exception]
) -> T:
    """Decode a JSON document. If it is invalid, raise the error that ``refuse`` makes of the
    reason. The reason calls the document ``whole``."""
    # msgspec recurses over the document, so deep nesting ends in a RecursionError.
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
    """Return a clause that begins with the argument, describes the fault and names what is allowed.

    ``fault`` is the error of decoding, ``given`` the decoded value, and ``kind`` the expected type,
    which lists the allowed values of an enumeration. ``whole`` names the value if the fault is not
    in a part of it. ``words`` has the names of types in the notation of the argument: :data:`JSON`,
    :data:`PYTHON` or :data:`TOML`.
    """
    if isinstance(fault, UnicodeDecodeError):
        return f"{whole} must be UTF-8 ({fault.reason} at byte {fault.start})"
    if isinstance(fault, RecursionError):
        return f"{whole} is nested too deep"
    text = str(fault)
    if text == "Input data was truncated":
        return f"{whole} ends too early, or a string in it has half of a surrogate pair"
    match = re.fullmatch(_AT, text)
    fault_text, is_key, path = (match[1], match[2], match[3]) if match else (text, None, "")
    steps = [name or index for name, index in re.findall(_STEP, path)]
    subject = _subject(steps, whole, is_key=bool(is_key))
    value = ABSENT if is_key else _value_at(given, steps)
    wrong_value = _WrongValue(
        subject, _shown(subject, value, words), _kinds_at(kind, steps), words=words
    )
    for pattern, sentence in _FAULTS:
        if (fault_match := re.fullmatch(pattern, fault_text)) is not None:
            return sentence(wrong_value, fault_match)
    # An unknown text of msgspec is repeated; it begins in lower case unless with a proper name.
    names_format = fault_text.startswith(("JSON", "MessagePack"))
    return f"{subject}: {fault_text if names_format else fault_text[:1].lower() + fault_text[1:]}"


class _WrongValue(msgspec.Struct, frozen=True):
    """A wrong value, with methods that describe its fault in a sentence."""

    subject: str
    shown: str
    """The value; empty if it must not be repeated."""
    kinds: Sequence[Any]
    """The allowed types, as msgspec describes them."""
    words: _Vocabulary

    def wrong_kind(self, match: re.Match[str]) -> str:
        """Return the fault of a value of another type than the expected ones."""
        names = [self.words.get(name, name) for name in match[1].split(" | ")]
        # The allowed words say more than their type. TOML has no null, so its name is empty there.
        expected = _listed(self._choices() or [name for name in names if name])
        actual = self.shown or (self.words.get(match[2], match[2]) if match[2] else "")
        return f"{self.subject} must be {expected}" + (f", not {actual}" if actual else "")

    def wrong_word(self, match: re.Match[str]) -> str:
        """Return the fault of a word that is not among the allowed ones."""
        choices = _listed(self._choices()) or "another value"
        return f"{self.subject} must be {choices}, not {self.shown or match[1]}"

    def out_of_bounds(self, match: re.Match[str]) -> str:
        actual_clause = f", not {self.shown}" if self.shown else ""
        return f"{self.subject} must be {_BOUNDS[match[1]]}{match[2]}{actual_clause}"

    def wrong_length(self, match: re.Match[str]) -> str:
        singular, plural = _COUNTED.get(match[1], ("entry", "entries"))
        actual_clause = f", not {match[4]}" if match[4] else ""
        counted = f"{match[3]} {singular if match[3] == '1' else plural}"
        return f"{self.subject} must have {_BOUNDS[match[2]]}{counted}{actual_clause}"

    def wrong_form(self, match: re.Match[str]) -> str:
        actual_clause = f", not {self.shown}" if self.shown else ""
        return f"{self.subject} must {_FORMS.get(match[0]) or f'match {match[1]}'}{actual_clause}"

    def unknown_field(self, match: re.Match[str]) -> str:
        """Return the fault of a field that does not exist."""
        fields = [
            field.encode_name
            for kind in self.kinds
            if isinstance(kind, msgspec.inspect.StructType)
            for field in kind.fields
        ]
        hint = f"; there are {', '.join(fields)}" if fields else ""
        return f"{self.subject} has no {self.words['field']} {match[1]!r}{hint}"

    def missing_field(self, match: re.Match[str]) -> str:
        return f"{self.subject} needs the {self.words['field']} {match[1]!r}, which is missing"

    def _choices(self) -> list[str]:
        """Return the allowed literal values, as text."""
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
_FAULTS: Final[Sequence[tuple[str, Callable[[_WrongValue, re.Match[str]], str]]]] = (
    (
        r"Expected `(\w+)` of length (?:(>=|<=) )?(\d+)(?:, got (\d+))?",
        _WrongValue.wrong_length,
    ),
    (r"Expected `([\w |]+)`(?:, got `(\w+)`)?", _WrongValue.wrong_kind),
    (r"Expected `\w+` (>=|<=|>|<) (-?[\d.]+)", _WrongValue.out_of_bounds),
    (r"Expected `str` matching regex (.*)", _WrongValue.wrong_form),
    ("|".join(f"({form})" for form in _FORMS), _WrongValue.wrong_form),
    (r"Invalid enum value (.*)", _WrongValue.wrong_word),
    (r"Object contains unknown field `(.*)`", _WrongValue.unknown_field),
    (r"Object missing required field `(.*)`", _WrongValue.missing_field),
)
"""Texts of msgspec, with the sentences that replace them."""


def _subject(steps: Sequence[str], whole: str, *, is_key: bool) -> str:
    """Return the name of the value at the end of ``steps``, as a user would write it."""
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
    """Return the value for a message; empty if the message names only its type."""
    if value is ABSENT or re.search(_SECRET, subject):
        return ""
    if value is None:
        return words["null"]
    if isinstance(value, bool) and words is not PYTHON:
        return str(value).lower()  # as JSON and TOML write it
    if not isinstance(value, str | int | float):
        return ""
    # A long text is cut before repr() copies it. The 2 is for the quotes.
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}…"


def _value_at(value: object, steps: Sequence[str]) -> object:
    """Return the value at the end of ``steps``; ``ABSENT`` if it does not exist."""
    for step in steps:
        if isinstance(value, Mapping) and step != _UNNAMED:
            value = value.get(step, ABSENT)
        elif isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def _kinds_at(kind: Any, steps: Sequence[str]) -> Sequence[Any]:
    """Return the types allowed at the end of ``steps`` inside the type ``kind``; an empty sequence
    if ``kind`` is None."""
    if kind is None:
        return ()
    kinds = [msgspec.inspect.type_info(kind)]
    for step in steps:
        kinds = [inner for outer in kinds for inner in _inside(outer, step)]
    return [option for outer in kinds for option in _options(outer)]


def _inside(kind: Any, step: str) -> Iterator[Any]:
    """Yield the types of the values one step inside a type."""
    for option in _options(kind):
        if isinstance(option, msgspec.inspect.StructType):
            yield from (field.type for field in option.fields if field.encode_name == step)
        elif isinstance(option, msgspec.inspect.DictType):
            yield option.value_type
        elif isinstance(option, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            yield option.item_type


def _options(kind: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself; without annotations."""
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            yield from _options(member)
    else:
        yield kind
