"""The table of extreme values: what it makes, and that what is asked has bounds to go beyond."""

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
    # By the size of the header they come in.
    "Hello": {"data: Bytes"},
    "Proof": {"data: Bytes"},
    "BeginImport": {"manifest: Bytes"},
    "Bury": {"reason: Str"},
    "CommitStagedParts": {"parts: VarTuple"},
    # One of some, looked at by `AclChange`'s route.
    "AclChange": {"rights: Str"},
}
"""Fields without a bound of their own, and what holds them."""
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
"""Attributes of channels and queues: `check_limits` of the core and the directory hold them,
whoever asks and in whatever protocol."""
EVENT = frozenset(
    ("data", "data_base64", "tag", "properties", "types", "headers", "message", "ttl", "deliver_at")
)
"""Parts of an event: its size is bounded as a whole (SEM E7), its times by the columns they go
into."""


def _asked() -> dict[str, type]:
    found: dict[str, type] = {name: kind.cls for name, kind in extremes.kinds().items()}
    for signature in TABLE.signatures.values():
        for kind in (signature.query, signature.body):
            if kind not in (None, Content, Upload):
                found[kind.__name__] = kind
    return found | {"NewEvent": NewEvent, "NewEvents": NewEvents}


@pytest.mark.parametrize("name", sorted(_asked()))
def test_every_field_of_what_is_asked_has_a_bound(name: str) -> None:
    """A new one has to have one, too: then it is tried beyond it over every way in."""
    found = unbounded(inspect.type_info(_asked()[name]))
    left = {
        what
        for what in found
        if what not in HELD_ELSEWHERE.get(name, ())
        and not ATTRIBUTES & set(what.split(": ")[:2])
        and not (name in ("NewEvent", "NewEvents") and EVENT & set(what.split(": ")[:2]))
    }

    assert left == set(), f"{name}: bound it by a type of core.bounds, or say here what holds it"


class Asked(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=1_000)]
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    times: Annotated[list[float], Meta(max_length=5)] = []


def test_a_type_that_says_its_bounds_is_tried_just_beyond_them() -> None:
    kind = inspect.type_info(Asked)
    assert isinstance(kind, inspect.StructType)
    made = list(structs_of(kind, JSON))
    by_field = {
        name: [value[name] for field, value in made if field == name]
        for name in ("count", "name", "times")
    }

    assert {0, 1_001, 2**63} <= {n for n in by_field["count"] if isinstance(n, int)}
    lengths = {len(text) for text in by_field["name"] if isinstance(text, str)}
    assert {NAME_CHARACTERS_MAX, NAME_CHARACTERS_MAX + 1, 1 << 20} <= lengths
    assert 6 in {len(each) for each in by_field["times"] if isinstance(each, tuple)}
    assert all(any(value is JSON.nested for value in values) for values in by_field.values())


def test_there_is_a_value_of_every_type_that_is_asked_for() -> None:
    for kind in _asked().values():
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]  # a StructType
            assert next(values_of(field.type)) is not Ellipsis
    assert len(TEXTS) == len(set(TEXTS))
