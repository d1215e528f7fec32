"""Writes a topology as TOML that :mod:`penstock_tools.topology.reading` reads. Attributes with
their default value are left out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from penstock_core.columns.events.durations import UNITS_MS
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS
from penstock_tools.topology.document import (
    PipelineFile,
    Place,
    Topology,
    WantedDurable,
    WantedGrant,
    WantedGroup,
    WantedJoin,
    WantedStore,
    WantedUser,
)
from penstock_tools.topology.reading import DURATIONS, EMBEDDED

Part = (
    WantedStore | WantedDurable | WantedJoin | WantedUser | WantedGroup | WantedGrant | PipelineFile
)
"""A part of a topology that is one table of its file."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_LEFT_OUT: Final = frozenset(("kind",))
"""Fields of a definition that are not written as attributes: the table's name is the kind."""


def to_toml(
    topology: Topology, *, heading: str = "", remark: Callable[[Place], str] | None = None
) -> str:
    """Return a topology as TOML text; ``heading`` becomes a comment at its top, and the result of
    ``remark`` for the place of each part becomes a comment above that part."""
    # An empty line of the heading must not end with a space.
    comment = "".join(f"# {line}\n".replace("# \n", "#\n") for line in heading.splitlines())
    tables = "\n".join("\n".join([*table, ""]) for table in _tables(topology, remark))
    return f"{comment}\n{tables}" if comment else tables


def _tables(topology: Topology, remark: Callable[[Place], str] | None) -> Iterator[list[str]]:
    """Yield the lines of each table."""
    for part, table in _parts(topology):
        yield [f"# {remark(part.place)}", *table] if remark else table


def _parts(topology: Topology) -> Iterator[tuple[Part, list[str]]]:
    """Yield each part of a topology with the lines of its table."""
    for store in topology.stores:
        yield store, _store_lines(store)
        # TOML assigns a [[channel.durable]] to the last [[channel]] above it.
        for durable in store.durables:
            yield durable, _durable_lines(durable)
    for durable in topology.durables:
        yield durable, _durable_lines(durable)
    for join in topology.joins:
        yield join, _join_lines(join)
    for user in topology.users:
        yield user, ["[[user]]", _format_pair("name", user.name)]
    for group in topology.groups:
        lines = [_format_pair("name", group.name), _format_pair("members", group.members)]
        yield group, ["[[group]]", *lines]
    for grant in topology.grants:
        yield grant, _grant_lines(grant)
    for pipeline in topology.pipelines:
        yield pipeline, ["[[pipeline]]", _format_pair("file", str(pipeline.path))]


def _store_lines(store: WantedStore) -> list[str]:
    attributes = {
        name: value
        for name, value in unusual(store.definition, Definition()).items()
        if name not in _LEFT_OUT
    }
    return [
        f"[[{store.kind}]]",
        _format_pair("name", store.name),
        *map(_format_attribute, attributes.items()),
    ]


def _durable_lines(durable: WantedDurable) -> list[str]:
    lines = ["[[channel.durable]]"]
    if durable.pattern:
        lines = ["[[durable]]", _format_pair("pattern", durable.pattern)]
    lines += [_format_pair("name", durable.name), _format_pair("type", durable.type)]
    if durable.selector:
        lines.append(_format_pair("selector", durable.selector))
    if durable.start != "earliest":
        lines.append(_format_pair("start", durable.start))
    if durable.persistent is not None:
        lines.append(_format_pair("persistent", durable.persistent))
    return [*lines, *map(_format_attribute, unusual(durable.attributes, DURABLE_DEFAULTS).items())]


def _join_lines(join: WantedJoin) -> list[str]:
    lines = [
        "[[join]]",
        _format_pair("source", join.source),
        _format_pair("destination", join.destination),
    ]
    if join.selector:
        lines.append(_format_pair("selector", join.selector))
    return [*lines, _format_pair("archive", value=True)] if join.archive else lines


def _grant_lines(grant: WantedGrant) -> list[str]:
    resource = [] if grant.kind == "realm" else [_format_pair(grant.kind, grant.name)]
    return [
        "[[grant]]",
        *resource,
        _format_pair("subject", grant.subject),
        _format_pair("rights", grant.rights),
    ]


def unusual(struct: Struct, usual: Struct) -> dict[str, Any]:
    """Return the fields whose value differs from that of ``usual``; a nested struct becomes a dict
    of its differing fields."""
    differing = {}
    for name in struct.__struct_fields__:
        value, default = getattr(struct, name), getattr(usual, name)
        if value != default:
            nested = isinstance(value, Struct) and isinstance(default, Struct)
            differing[name] = unusual(value, default) if nested else value
    return differing


def _format_attribute(pair: tuple[str, Any]) -> str:
    name, value = pair
    if isinstance(value, bytes):
        return _format_pair(name, EMBEDDED + base64.b64encode(value).decode())
    if name == "storage":
        return _format_pair(name, {key: duration(key, item) for key, item in value.items()})
    return _format_pair(name, duration(name, value))


def duration(name: str, value: Any) -> Any:
    """Return the value of attribute ``name`` as a file shows it: milliseconds in their largest unit
    (``5m``), a backoff as a dict of its fields that are not defaults, other values unchanged."""
    if isinstance(value, Backoff):
        written = {"first": _in_units(value.first), "most": _in_units(value.most)}
        return {"first": written["first"]} | {
            key: written.get(key, item)
            for key, item in unusual(value, Backoff(value.first)).items()
        }
    if name not in DURATIONS or not value or isinstance(value, str):
        return value
    return _in_units(value)


def _in_units(time_ms: int) -> str:
    unit, length = max(
        ((unit, length) for unit, length in UNITS_MS.items() if time_ms % length == 0),
        key=lambda candidate: candidate[1],  # the largest unit without a remainder
    )
    return f"{time_ms // length}{unit}"


def _format_pair(key: str, value: Any) -> str:
    name = key if _BARE_KEY.fullmatch(key) else _format_text(key)
    return f"{name} = {_format_value(value)}"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_format_pair(key, item) for key, item in value.items())} }}"
    if isinstance(value, Iterable):
        return f"[{', '.join(map(_format_value, value))}]"
    return str(value)


def _format_text(value: str) -> str:
    """Return a TOML string. It equals the JSON string except for DEL, which JSON does not
    escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
