"""The changes made by an act of administration: the attributes of its target before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock_core.vocabulary.definitions import Definition

if TYPE_CHECKING:
    from penstock_server.runtime.access.accounts import Accounts

SHOWN_MAX = 200
"""Characters of a value that a record shows."""
_NOTHING = "nothing"
"""Text for the value of an attribute that did not exist."""

DefinitionOf = Callable[[str], Definition | None]
"""Returns the attributes of a channel or queue; None if it does not exist."""


def state_of(
    operation: str, name: str, target: str, accounts: Accounts, definition_of: DefinitionOf
) -> dict[str, str]:
    """Return the attributes of the target that ``operation`` may change, as texts by name."""
    kind, _, verb = operation.partition(".")
    if verb == "edit":
        definition = definition_of(name)
        return {} if definition is None else _flat(definition, "")
    if verb == "acl.change":
        entries = accounts.acl.entries(kind, name)
        return {entry.subject: ", ".join(entry.rights) for entry in entries}
    if operation in ("user.change", "me.password"):
        return accounts.audited_user(target)
    if operation == "group.change":
        return accounts.audited_group(target)
    return {}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the differences, such as ``{"ttl_ms": "0 -> 5000"}``."""
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: f"{before.get(name, _NOTHING)} -> {after.get(name, _NOTHING)}"
        for name in names
        if before.get(name) != after.get(name)
    }


def _flat(attributes: msgspec.Struct, prefix: str) -> dict[str, str]:
    """Return all attributes as texts; the names of nested ones begin with ``prefix``."""
    texts: dict[str, str] = {}
    for name, value in msgspec.structs.asdict(attributes).items():
        if isinstance(value, msgspec.Struct):
            texts |= _flat(value, f"{prefix}{name}.")
        elif name == "descriptors":
            texts[f"{prefix}{name}"] = f"{len(value)} bytes, {hash_of(value)}" if value else "none"
        else:
            text = str(value)
            texts[f"{prefix}{name}"] = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return texts


def hash_of(value: Any) -> str:
    """Return a short hash that distinguishes large values in an audit record."""
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest(msgspec.msgpack.encode(value))
