"""The table of extreme values: its values fit the types, and every field of a request has a bound
to exceed."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, inspect

from penstock_core.bounds import NAME_CHARACTERS_MAX
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import Content, Upload
from penstock_server.frontends.http.shapes import NewEvent, NewEvents
from tests.fuzz import extremes
from tests.fuzz.values import JSON, TEXTS, structs_of, unbounded, values_of

HELD_ELSEWHERE = {
    # by the size of the header that contains them
    "Hello": {"data: Bytes"},
    "Proof": {"data: Bytes"},
    "BeginImport": {"manifest: Bytes"},
    "Bury": {"reason: Str"},
    "CommitStagedParts": {"parts: VarTuple"},
    # one of a few values, checked by the route of `AclChange`
    "AclChange": {"rights: Str"},
}
"""Fields without their own bound, and the code that bounds them."""
ATTRIBUTES = frozenset(
    (
        "type",
        "engine",
        "ttl",
        "capacity",
        "dead_event_store",
        "keys",
        "max_deliveries",
        "start_event_id",
        "descriptors",
        "archive",
        "storage",
        "backoff",
        "topics",
    )
)
"""Attributes of channels and queues: `check_limits` of the core and the directory bound them for
all protocols."""
EVENT = frozenset(
    ("data", "data_base64", "tag", "properties", "types", "headers", "message", "ttl", "deliver_at")
)
"""Parts of an event: its size is bounded as a whole (SEM E7), its times by the types of their
columns."""


def _request_types() -> dict[str, type]:
    types: dict[str, type] = {name: kind.cls for name, kind in extremes.kinds().items()}
    for signature in TABLE.signatures.values():
        for kind in (signature.query, signature.body):
            if kind not in (None, Content, Upload):
                types[kind.__name__] = kind
    return types | {"NewEvent": NewEvent, "NewEvents": NewEvents}


@pytest.mark.parametrize("name", sorted(_request_types()))
def test_every_field_of_a_request_has_a_bound(name: str) -> None:
    """A new field needs a bound, too, so that values beyond it are tried over every protocol."""
    unbounded_fields = unbounded(inspect.type_info(_request_types()[name]))
    remaining = {
        what
        for what in unbounded_fields
        if what not in HELD_ELSEWHERE.get(name, ())
        and not ATTRIBUTES & set(what.split(": ")[:2])
        and not (name in ("NewEvent", "NewEvents") and EVENT & set(what.split(": ")[:2]))
    }

    assert remaining == set(), (
        f"{name}: bound it by a type of core.bounds, or say here what holds it"
    )


class Request(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=1_000)]
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    times: Annotated[list[float], Meta(max_length=5)] = []


def test_a_type_with_bounds_is_tried_just_beyond_them() -> None:
    kind = inspect.type_info(Request)
    assert isinstance(kind, inspect.StructType)
    values_made = list(structs_of(kind, JSON))
    by_field = {
        name: [value[name] for field, value in values_made if field == name]
        for name in ("count", "name", "times")
    }

    assert {0, 1_001, 2**63} <= {n for n in by_field["count"] if isinstance(n, int)}
    lengths = {len(text) for text in by_field["name"] if isinstance(text, str)}
    assert {NAME_CHARACTERS_MAX, NAME_CHARACTERS_MAX + 1, 1 << 20} <= lengths
    assert 6 in {len(times) for times in by_field["times"] if isinstance(times, tuple)}
    assert all(any(value is JSON.nested for value in values) for values in by_field.values())


def test_every_type_of_a_request_has_a_value() -> None:
    for kind in _request_types().values():
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]  # a StructType
            assert next(values_of(field.type)) is not Ellipsis
    assert len(TEXTS) == len(set(TEXTS))
