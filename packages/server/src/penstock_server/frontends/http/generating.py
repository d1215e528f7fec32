"""Rewrites JSON schemas into equivalent ones that client generators understand.

Tuples become arrays of fixed length, optional values become lists of types, and generic types get
plain names.
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
"""Schema names of those types of the realm's API that routes return without changes."""

NAMES: Final = {
    "pattern": r"^[^\u0000-\u0020\u007f]([^\u0000-\u001f\u007f]*[^\u0000-\u0020\u007f])?$"
}
"""Schema of names; the realm checks further rules for names (SEM C2)."""
STARTS: Final = {"pattern": r"^(earliest|latest|[0-9]{1,18}|[0-9]{4}-?[0-9W].*)$"}
"""Schema of start positions (SEM E6)."""
NUMBERS: Final = {"pattern": "^[0-9]{1,19}$"}
"""Schema of event ids and other numbers in a path."""


def readable(tree: Any) -> Any:
    """Return the document in forms that generators understand.

    Raises ``ValueError`` for a schema that cannot be rewritten.
    """
    if isinstance(tree, list):
        return [readable(item) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    schema = {key: readable(value) for key, value in tree.items()}
    if isinstance(schema.get("$ref"), str):
        schema["$ref"] = _REF + plain_name(schema["$ref"].removeprefix(_REF))
    if isinstance(schema.get("enum"), list) and "type" not in schema:
        schema = _with_type(schema)
    if "prefixItems" in schema:
        schema = _without_tuple(schema)
    if "anyOf" in schema:
        schema = _without_choice(schema)
    return schema


def plain_name(name: str) -> str:
    """Return the plain name of a type, such as ``JoinAnswerPage`` for ``Page_JoinAnswer_``."""
    generic = _GENERIC.fullmatch(name)
    if generic is None:
        return ANSWERS.get(name, name)
    return f"{ANSWERS.get(generic[2], generic[2])}{generic[1]}"


def with_required(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a component. All fields of the realm's own answers are required, because
    an answer always has all its fields."""
    if name not in ANSWERS:
        return schema
    fields = {
        field: {keyword: value for keyword, value in field_schema.items() if keyword != "default"}
        for field, field_schema in schema["properties"].items()
    }
    required = {**schema, "properties": fields, "required": [*fields]}
    return {keyword: value for keyword, value in required.items() if keyword != "description"}


def without_unused(paths: Any, components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``components`` that ``paths`` refer to, directly or indirectly, in their order."""
    used: set[str] = set()
    pending = [paths]
    while pending:
        for name in _references(pending.pop()) - used:
            used.add(name)
            pending.append(components[name])
    return {name: schema for name, schema in components.items() if name in used}


def _references(tree: Any) -> set[str]:
    """Return the names of the components that a document refers to."""
    if isinstance(tree, list):
        return {name for item in tree for name in _references(item)}
    if not isinstance(tree, Mapping):
        return set()
    names = {name for value in tree.values() for name in _references(value)}
    reference = tree.get("$ref")
    if isinstance(reference, str):
        names.add(reference.removeprefix(_REF))
    return names


def _with_type(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an enumeration with its type, string or boolean."""
    if all(isinstance(value, str) for value in schema["enum"]):
        return {**schema, "type": "string"}
    if all(isinstance(value, bool) for value in schema["enum"]):
        return {**{key: schema[key] for key in schema if key != "enum"}, "type": "boolean"}
    raise ValueError(f"generators do not support the enumeration {schema['enum']}; use strings")


def _without_tuple(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tuple of equal items as that of an array of this length."""
    items = schema.pop("prefixItems")
    if any(item != items[0] for item in items):
        raise ValueError(f"generators do not support a tuple of {items}; use a struct")
    return {**schema, "items": items[0], "minItems": len(items), "maxItems": len(items)}


def _without_choice(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an optional value as a list of types. Choices between structs, or between types
    without bounds, are not changed."""
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    has_null = len(options) < len(schema["anyOf"])
    if all(option.keys() & {"$ref", "type"} == option.keys() for option in options) and (
        len(options) > 1 or "$ref" in options[0]
    ):
        return schema
    if len(options) > 1:
        raise ValueError(f"generators do not support a choice between {options}; remove the bounds")
    other_keys = {key: value for key, value in schema.items() if key != "anyOf"}
    [only] = options
    kind = only["type"]
    if "enum" in only and has_null:
        only = {**only, "enum": [*only["enum"], None]}
    return {**other_keys, **only, "type": [kind, "null"] if has_null else kind}
