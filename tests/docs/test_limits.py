"""The table of limits says what the code does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final, cast

import pytest

from penstock_server.settings.loading import described
from tests.docs.pages import ROOT
from tests.tidy.parsing import parsed

PAGE = ROOT / "docs/reference/limits.md"
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1}
_BOUND = re.compile(r"([\d,.]+) ?(KiB|MiB|GiB|B|s)?\b")

FED_BY_CLIENTS: Final = (
    "amqp/src",
    "core/src/penstock_core/wire",
    "mqtt/src",
    "server/src/penstock_server/frontends",
)
"""Folders of modules whose bounds are on the page."""
NO_MEMORY: Final = {
    "of the protocol, and of single values": (
        "penstock_amqp.flows.CREDIT_MAX",
        "penstock_amqp.incoming._INT32_MAX",
        "penstock_amqp.outgoing._UINT_MAX",
        "penstock_amqp.typed.MS_MAX",
        "penstock_amqp.typed._LONG_MAX",
        "penstock_mqtt.expressing.EXPIRY_S_MAX",
        "penstock_mqtt.session_store.PACKET_ID_MAX",
        "penstock_mqtt.wire.framing._LENGTH_BYTES_MAX",
        "penstock_mqtt.wire.packets.PACKET_BYTES_MAX",
        "penstock_mqtt.wire.primitives.BYTES_MAX",
        "penstock_mqtt.wire.primitives.VARIABLE_MAX",
        "penstock_mqtt.wire.reading._REMEMBERED_BYTES_MAX",
        "penstock_core.wire.websocket.CONTROL_BYTES_MAX",
        "penstock_mqtt.topic_index.CHARACTERS_MAX",
        *(
            f"penstock_amqp.wire.performatives.{name}_MAX"
            for name in ("CONTAINER", "HOST", "LINK_NAME", "ADDRESS", "TAG_BYTES")
        ),
        *(
            f"penstock_amqp.wire.performatives.{name}_MAX"
            for name in ("TRANSACTION_BYTES", "CONDITION", "DESCRIPTION")
        ),
    ),
    "of what the server makes, or asks for": (
        "penstock_amqp.outgoing._WRITTEN_MAX",
        "penstock_server.frontends.http.consuming_shapes.FETCH_MAX",
        "penstock_server.frontends.http.consuming_shapes.IDS_MAX",
        "penstock_server.frontends.http.destinations.SEGMENTS_MAX",
        "penstock_server.frontends.http.health.INCIDENTS_SHOWN_MAX",
        "penstock_server.frontends.http.publishing.PART_BYTES_MAX",
        "penstock_server.frontends.http.shapes.LIMIT_MAX",
        "penstock_mqtt.expressing._TEXT_MAX",
        "penstock_mqtt.messages._COLUMN_BYTES_MAX",
        "penstock_mqtt.reasons._REASON_CHARACTERS_MAX",
        "penstock_mqtt.session_store.TOGETHER_BYTES_MAX",
        "penstock_core.wire.native.frames._CHUNK_BYTES_MAX",
    ),
    "of work, depth or time": (
        "penstock_amqp.connection.TICK_S_MAX",
        "penstock_amqp.link_terms._GENERAL_MAX",
        "penstock_amqp.single_message.DOUBTS_MAX",
        "penstock_amqp.typed.LEVELS_MAX",
        "penstock_server.frontends.http.consuming_shapes.LEASE_MS_MAX",
        "penstock_server.frontends.http.consuming_shapes.WAIT_MS_MAX",
        "penstock_mqtt.json_payloads.COLUMN_LEVELS_MAX",
        "penstock_mqtt.json_payloads.LEAVES_MAX",
        "penstock_mqtt.sessions.LOOK_S_MAX",
        "penstock_server.frontends.native.listener.REFUSABLE_MAX",
        "penstock_core.wire.scram.ROUNDS_MAX",
    ),
}
"""Bounds of which nothing that a client fills is kept, by what they are of."""


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


ROWS = rows()


def value_of(where: str) -> object:
    """The constant or the setting's default that a row names."""
    if where.startswith("penstock_"):
        module, name = where.rsplit(".", 1)
        return getattr(import_module(module), name)
    return next(default for path, default, _ in described() if path == where)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_bound_on_the_page_is_the_one_in_the_code(row: list[str]) -> None:
    _, bound, _, _, where = row

    number = _BOUND.match(bound)

    assert number is not None
    assert float(number[1].replace(",", "")) * _UNITS[number[2] or ""] == value_of(where.strip("`"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_for_what_a_bound_holds_and_what_happens_beyond_it(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)


def fed_modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in FED_BY_CLIENTS:
        for path in sorted((ROOT / "packages" / folder).rglob("*.py")):
            name = path.as_posix().partition("/src/")[2].removesuffix(".py").replace("/", ".")
            if re.search("_MAX|cache", path.read_text(encoding="utf-8")):
                yield name, parsed(path)


def bounds_in(tree: ast.Module) -> Iterator[str]:
    """The names of a module's constants that are bounds."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if isinstance(target, ast.Name) and target.id.endswith("_MAX"):
            yield target.id


def unbounded_in(tree: ast.Module) -> Iterator[int]:
    """The lines of caches without a bound that has a name."""
    bounded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("lru_cache"):
            bounded.add(id(node.func))
            sizes = [*node.args, *(each.value for each in node.keywords)]
            if not any(isinstance(each, ast.Name) and each.id.endswith("_MAX") for each in sizes):
                yield node.lineno
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else ""
        name = node.attr if isinstance(node, ast.Attribute) else name
        if name in ("lru_cache", "cache") and id(node) not in bounded:
            yield cast("ast.expr", node).lineno


def test_every_bound_of_what_clients_fill_is_on_the_page() -> None:
    """A new one gets a row, or is named above with what it is of."""
    known = {where.strip("`") for *_, where in ROWS}
    known |= {name for names in NO_MEMORY.values() for name in names}
    there = {f"{name}.{bound}" for name, tree in fed_modules() for bound in bounds_in(tree)}

    assert there - known == set()
    assert {each for names in NO_MEMORY.values() for each in names} - there == set()


def test_every_cache_that_clients_fill_has_a_bound() -> None:
    lines = [f"{name}:{line}" for name, tree in fed_modules() for line in unbounded_in(tree)]

    assert lines == []
