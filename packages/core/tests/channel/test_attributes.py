"""Attributes that would have no effect on a store are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock_core.channel.attributes import OF_FILES, OF_STORED_EVENTS, OF_SYNCS
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.bootstrap import rules

GUIDE = Path(__file__).parents[4] / "docs" / "guide" / "channels.md"
OTHER: dict[str, Any] = {
    "sync": "none",
    "sync_each_write": True,
    "sync_max_batch_size": 1,
    "sync_batch_time": 1,
    "events_per_spindle": 0,
    "auto_maintenance": False,
    "enable_caching": False,
    "cache_on_reload": True,
    "read_buffer_size": 1 << 16,
    "compression": "zstd",
    "keys": {"k": 1},
    "dead_event_store": "dead",
    "retain_consumed": True,
}
"""A value other than the default, for each attribute."""
WITHOUT_SYNCS = {"reliable", "simple", "off_heap", "transient"}
WITHOUT_FILES = {*WITHOUT_SYNCS, "paged"}


def refusal(**attributes: Any) -> str:
    """Return the error text for a store with these attributes; empty if it can be created."""
    directory = Directory(rules())
    directory.apply(directory.decide_create("dead", Definition()))
    try:
        directory.decide_create("a", Definition(**attributes))
    except InvalidArgument as error:
        return str(error)
    return ""


def definition_fields(name: str) -> dict[str, Any]:
    if name in OF_STORED_EVENTS:
        return {name: OTHER[name]}
    return {"storage": Storage(**{name: OTHER[name]})}


@pytest.mark.spec("C3", "S")
@pytest.mark.parametrize("type", sorted(rules().types))
@pytest.mark.parametrize("name", OTHER)
def test_an_attribute_that_never_counts_on_a_type_is_refused_there(name: str, type: str) -> None:
    without = {"transient"} if name in OF_STORED_EVENTS else WITHOUT_FILES
    without = WITHOUT_SYNCS if name in OF_SYNCS else without
    text = refusal(type=type, **definition_fields(name))

    assert bool(text) == (type in without)
    if text:
        assert f"{name} has no effect on a {type} channel: it applies to types that" in text
        right = text.partition("(")[2].partition(")")[0].split(", ")
        assert right, "the message names what would be right"
        assert not any(refusal(type=type_, **definition_fields(name)) for type_ in right)


@pytest.mark.spec("C3", "S")
@pytest.mark.parametrize("name", [*OF_SYNCS, *OF_FILES])
def test_where_states_are_merged_properties_of_files_are_refused(name: str) -> None:
    text = refusal(engine="merge", keys={"k": 1}, **definition_fields(name))

    if name in OF_FILES:
        assert f"storage.{name} has no effect on engine merge" in text
        assert "use engine default or jms" in text
        assert not any(
            refusal(engine=engine, **definition_fields(name)) for engine in ("default", "jms")
        )
    else:
        assert not text


@pytest.mark.spec("C3", "S")
@pytest.mark.parametrize(
    ("storage", "right"),
    [
        (Storage(sync="none", sync_each_write=True), "set sync to 'group'"),
        (Storage(enable_caching=False, cache_on_reload=True), "turn that on"),
    ],
)
def test_properties_that_contradict_each_other_are_refused(storage: Storage, right: str) -> None:
    for kind in ("channel", "queue"):
        assert right in refusal(kind=kind, storage=storage)


@pytest.mark.spec("C3", "S")
@pytest.mark.parametrize(
    "attributes",
    [
        {"type": "transient", "ttl": 5, "event_ttl": True, "capacity": 5},
        {"type": "transient", "storage": Storage(honour_capacity=True)},
        {"type": "transient", "storage": Storage(priority=7, stamp_dictionary=True)},
        {"type": "transient", "start_event_id": 7},
        {"storage": Storage(honour_capacity=True)},
        {"type": "mixed", "event_ttl": True},
        {"storage": Storage(auto_maintenance=False)},
        {"storage": Storage(read_buffer_size=1 << 16)},
        {"storage": Storage(sync="none", sync_max_batch_size=0, sync_batch_time=9)},
        {"storage": Storage(sync_each_write=True, sync_batch_time=9)},
        {"type": "persistent", "dead_event_store": "dead"},
        {"engine": "jms", "retain_consumed": True, "dead_event_store": "dead"},
    ],
)
def test_what_counts_after_another_edit_and_bounds_that_hold_are_taken(
    attributes: dict[str, Any],
) -> None:
    assert refusal(**attributes) == ""


@pytest.mark.spec("C3")
def test_the_guide_names_every_attribute_that_is_refused_and_the_types() -> None:
    rows = re.findall(r"^\| (`.*) \| refused on (.*?):", GUIDE.read_text(), re.MULTILINE)
    syncs_by_names = {
        tuple(re.findall(r"`(?:storage\.)?(\w+)`", names)): set(re.findall(r"`(\w+)`", types))
        for names, types in rows
    }

    assert syncs_by_names == {
        OF_SYNCS: WITHOUT_SYNCS,
        OF_FILES: WITHOUT_FILES,
        OF_STORED_EVENTS: {"transient"},
    }
