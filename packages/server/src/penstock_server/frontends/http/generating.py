"""Rewrites JSON schemas so that client generators understand them, with the same meaning.

Tuples become lists of a fixed length, a value or null becomes a list of types, and names of generic
types become plain words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_REF: Final = "#/components/schemas/"
_GENERIC: Final = re.compile(r"(\w+?)_(\w+)_")
ANSWERS: Final = {
    "DeadSummary": "DeadAnswer",
    "GroupInfo": "GroupAnswer",
    "Maintained": "MaintainedAnswer",
    "PipelineInfo": "PipelineAnswer",
    "Redriven": "RedrivenAnswer",
    "StorageInfo": "StorageAnswer",
}
"""What answers of the realm's API are called here, which are documents as they stand."""

NAMES: Final = {
    "pattern": r"^[^\u0000-\u0020\u007f]([^\u0000-\u001f\u007f]*[^\u0000-\u0020\u007f])?$"
}
"""What names look like; the rule for names tells what is wrong with one (SEM C2)."""
STARTS: Final = {"pattern": r"^(earliest|latest|[0-9]{1,18}|[0-9]{4}-?[0-9W].*)$"}
"""What start positions look like (SEM E6)."""
NUMBERS: Final = {"pattern": "^[0-9]{1,19}$"}
"""What an event id or another number is in a path."""


def readable(tree: Any) -> Any:
    """The document in forms that generators know. Raises ``ValueError`` for a schema that has
    none."""
    if isinstance(tree, list):
        return [readable(each) for each in tree]
    if not isinstance(tree, Mapping):
        return tree
    said = {key: readable(value) for key, value in tree.items()}
    if isinstance(said.get("$ref"), str):
        said["$ref"] = _REF + worded(said["$ref"].removeprefix(_REF))
    if isinstance(said.get("enum"), list) and "type" not in said:
        said = _with_type(said)
    if "prefixItems" in said:
        said = _without_tuple(said)
    if "anyOf" in said:
        said = _without_choice(said)
    return said


def worded(name: str) -> str:
    """``Page_JoinAnswer_`` as ``JoinAnswerPage``."""
    generic = _GENERIC.fullmatch(name)
    if generic is None:
        return ANSWERS.get(name, name)
    return f"{ANSWERS.get(generic[2], generic[2])}{generic[1]}"


def said_whole(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a component; an answer of the realm's API always has all of its fields."""
    if name not in ANSWERS:
        return schema
    fields = {
        field: {word: said for word, said in own.items() if word != "default"}
        for field, own in schema["properties"].items()
    }
    whole = {**schema, "properties": fields, "required": [*fields]}
    return {word: said for word, said in whole.items() if word != "description"}


def without_unused(paths: Any, components: Mapping[str, Any]) -> dict[str, Any]:
    """The ``components`` that ``paths`` refer to, directly or through others, in their order."""
    used: set[str] = set()
    waiting = [paths]
    while waiting:
        for name in _referred(waiting.pop()) - used:
            used.add(name)
            waiting.append(components[name])
    return {name: schema for name, schema in components.items() if name in used}


def _referred(tree: Any) -> set[str]:
    if isinstance(tree, list):
        return {name for each in tree for name in _referred(each)}
    if not isinstance(tree, Mapping):
        return set()
    found = {name for each in tree.values() for name in _referred(each)}
    reference = tree.get("$ref")
    if isinstance(reference, str):
        found.add(reference.removeprefix(_REF))
    return found


def _with_type(said: dict[str, Any]) -> dict[str, Any]:
    """An enumeration with its type: strings, or booleans."""
    if all(isinstance(each, str) for each in said["enum"]):
        return {**said, "type": "string"}
    if all(isinstance(each, bool) for each in said["enum"]):
        return {**{key: said[key] for key in said if key != "enum"}, "type": "boolean"}
    raise ValueError(f"generators know no choice of {said['enum']}; use words")


def _without_tuple(said: dict[str, Any]) -> dict[str, Any]:
    items = said.pop("prefixItems")
    if any(each != items[0] for each in items):
        raise ValueError(f"generators know no list of {items}; use a struct")
    return {**said, "items": items[0], "minItems": len(items), "maxItems": len(items)}


def _without_choice(said: dict[str, Any]) -> dict[str, Any]:
    """A value or null as a list of types. Choices between structs, or between types without bounds,
    stay."""
    options = [each for each in said["anyOf"] if each != {"type": "null"}]
    has_null = len(options) < len(said["anyOf"])
    if all(each.keys() & {"$ref", "type"} == each.keys() for each in options) and (
        len(options) > 1 or "$ref" in options[0]
    ):
        return said
    if len(options) > 1:
        raise ValueError(f"generators know no choice of {options}; say their bounds elsewhere")
    rest = {key: value for key, value in said.items() if key != "anyOf"}
    [only] = options
    kind = only["type"]
    if "enum" in only and has_null:
        only = {**only, "enum": [*only["enum"], None]}
    return {**rest, **only, "type": [kind, "null"] if has_null else kind}
