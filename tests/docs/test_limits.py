"""The table of limits says what the code does."""

from __future__ import annotations

import ast
import re
from collections import Counter
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
    "cluster/src",
    "core/src",
    "lakehouse/src",
    "mqtt/src",
    "server/src/penstock_server/frontends",
    "server/src/penstock_server/runtime",
    "server/src/penstock_server/storage",
    "spark/src",
)
"""Folders of modules whose bounds are on the page."""
_LIMITING_SETTING = re.compile(r"_max(_|$)|^max_|^(limits|http)\..*_bytes$|\.cache_bytes$")
"""Settings whose name says a limit."""
NO_MEMORY: Final = {
    "of the protocol, and of single values": (
        "penstock_amqp.flows.CREDIT_MAX",
        "penstock_amqp.incoming._INT32_MAX",
        "penstock_amqp.outgoing._UINT_MAX",
        "penstock_amqp.typed.MS_MAX",
        "penstock_amqp.typed._LONG_MAX",
        "penstock_amqp.wire.performatives.CONTAINER_MAX",
        "penstock_amqp.wire.performatives.HOST_MAX",
        "penstock_amqp.wire.performatives.LINK_NAME_MAX",
        "penstock_amqp.wire.performatives.ADDRESS_MAX",
        "penstock_amqp.wire.performatives.TAG_BYTES_MAX",
        "penstock_amqp.wire.performatives.TRANSACTION_BYTES_MAX",
        "penstock_amqp.wire.performatives.CONDITION_MAX",
        "penstock_amqp.wire.performatives.DESCRIPTION_MAX",
        "penstock_mqtt.expressing.EXPIRY_S_MAX",
        "penstock_mqtt.session_store.PACKET_ID_MAX",
        "penstock_mqtt.topic_index.CHARACTERS_MAX",
        "penstock_mqtt.wire.framing._LENGTH_BYTES_MAX",
        "penstock_mqtt.wire.packets.PACKET_BYTES_MAX",
        "penstock_mqtt.wire.primitives.BYTES_MAX",
        "penstock_mqtt.wire.primitives.VARIABLE_MAX",
        "penstock_mqtt.wire.reading._CACHED_BYTES_MAX",
        "penstock_core.access.rights.NAME_LENGTH_MAX",
        "penstock_core.wire.websocket.CONTROL_BYTES_MAX",
        "penstock_core.bounds.EVENT_ID_MAX",
        "penstock_core.bounds.NEXT_ID_MAX",
        "penstock_core.bounds.NUMBER_MAX",
        "penstock_core.bounds.TIME_US_MAX",
        "penstock_core.bounds.TTL_MS_MAX",
        "penstock_core.bounds.GIVEN_NAME_CHARACTERS_MAX",
        "penstock_core.bounds.REDELIVERIES_MAX",
        "penstock_core.channel.retention.CAPACITY_MAX",
        "penstock_core.channel.retention.KEY_DEPTH_MAX",
        "penstock_core.channel.retention.ARCHIVE_LENGTH_MAX",
        "penstock_core.columns.events.single_event.COLUMNS_MAX",
        "penstock_server.runtime.store.bodies.PLAIN_NAME_CHARACTERS_MAX",
        "penstock_server.runtime.store.bodies.PLAIN_PROPERTIES_MAX",
        "penstock_core.columns.events.single_event.MESSAGE_BYTES_MAX",
        "penstock_core.columns.events.single_event.ROW_BYTES_MAX",
        "penstock_core.columns.files.tables.DECIMAL_DIGITS_MAX",
        "penstock_core.columns.files.tables._INT64_DIGITS_MAX",
        "penstock_core.columns.schema.arrays._BYTES_MAX",
        "penstock_core.columns.schema.ipc._INLINE_BYTES_MAX",
        "penstock_core.columns.schema.layout.PRIORITY_MAX",
        "penstock_core.columns.schema.layout.REASON_CHARACTERS_MAX",
        "penstock_core.columns.schema.number_columns.EXACT_MAX",
        "penstock_core.columns.schema.values._INT64_MAX",
        "penstock_core.columns.selectors.accesses.PREFIX_CHARACTERS_MAX",
        "penstock_core.columns.selectors.typed_columns._INT64_MAX",
        "penstock_core.columns.selectors.parser.PATTERN_MAX",
        "penstock_core.columns.selectors.references._INDEX_MAX",
        "penstock_core.columns.selectors.tokens.LENGTH_MAX",
        "penstock_core.columns.selectors.tokens._DIGITS_MAX",
        "penstock_core.columns.selectors.tokens._INTEGER_MAX",
        "penstock_core.realm.exports._COUNT_MAX",
        "penstock_core.vocabulary.backoff.FACTOR_MAX",
        "penstock_core.vocabulary.backoff.SEED_MAX",
        "penstock_core.vocabulary.names.NAME_LENGTH_MAX",
        "penstock_core.vocabulary.names.FILE_PART_MAX",
        "penstock_server.runtime.access.audit.TEXT_MAX",
        "penstock_server.runtime.access.audit.PARTS_MAX",
        "penstock_server.runtime.transfer.imports.PUBLISHER_CHARACTERS_MAX",
        "penstock_server.storage.embedded.quarantine._NAME_MAX",
        "penstock_server.storage.embedded.records.KEY_LENGTH_MAX",
    ),
    "of what the server makes, or asks for": (
        "penstock_amqp.outgoing._CACHED_BATCHES_MAX",
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
        "penstock_lakehouse.catalog_routes.PAGE_MAX",
        "penstock_lakehouse.channel_tables.LISTED_MAX",
        "penstock_lakehouse.data_files.BOUND_BYTES_MAX",
        "penstock_lakehouse.event_files.BYTES_MAX",
        "penstock_lakehouse.event_files.MEMORY_FILES_MAX",
        "penstock_lakehouse.event_files.REMOVED_MAX",
        "penstock_lakehouse.event_files.ROWS_MAX",
        "penstock_core.channel.state.CHUNK_BYTES_MAX",
        "penstock_core.channel.state.CHUNK_EVENTS_MAX",
        "penstock_core.durable.pace.GROWN_MAX",
        "penstock_core.vocabulary.ports.READ_BYTES_MAX",
        "penstock_core.columns.schema.layout._SHOWN_MAX",
        "penstock_core.columns.schema.property_names._SHOWN_MAX",
        "penstock_core.columns.selectors.faults._SHOWN_MAX",
        "penstock_core.columns.selectors.faults._ACTUAL_MAX",
        "penstock_core.columns.selectors.summaries.BYTES_MAX",
        "penstock_core.columns.selectors.summaries.DISTINCT_MAX",
        "penstock_core.columns.selectors.summaries.TEXT_MAX",
        "penstock_server.runtime.access.audit_details.SHOWN_MAX",
        "penstock_server.runtime.operations.realm_handlers.CHANNELS_MAX",
        "penstock_server.runtime.store.large_blocks.BLOCK_BYTES_MAX",
        "penstock_server.runtime.store.outgoing_batch.FRAME_MAX",
        "penstock_server.runtime.store.outgoing_batch.MERGE_ROWS_MAX",
        "penstock_server.runtime.store.outgoing_batch.MERGE_BYTES_MAX",
        "penstock_server.runtime.subscriptions.locations.PUBLISHER_SPANS_MAX",
        "penstock_server.runtime.subscriptions.locations.MISSING_SPANS_MAX",
        "penstock_server.runtime.transfer.imports._SHOWN_MAX",
        "penstock_server.storage.disk._VECTORS_MAX",
        "penstock_server.storage.embedded.ahead.BLOCK_BYTES_MAX",
        "penstock_cluster.owning.agreement._SHOWN_MAX",
        "penstock_cluster.storage.jetstream.asking._AT_ONCE_BYTES_MAX",
        "penstock_cluster.storage.jetstream.connection.UNDER_WAY_MAX",
        "penstock_cluster.storage.jetstream.engine.FRAME_BYTES_MAX",
    ),
    "of work, depth or time": (
        "penstock_amqp.limits.TICK_S_MAX",
        "penstock_amqp.link_terms._SELECTOR_MAX",
        "penstock_amqp.single_message.MISMATCHES_MAX",
        "penstock_amqp.typed.LEVELS_MAX",
        "penstock_server.frontends.http.consuming_shapes.LEASE_MS_MAX",
        "penstock_server.frontends.http.consuming_shapes.WAIT_MS_MAX",
        "penstock_server.frontends.native.listener.REFUSABLE_MAX",
        "penstock_mqtt.json_payloads.COLUMN_LEVELS_MAX",
        "penstock_mqtt.json_payloads.LEAVES_MAX",
        "penstock_mqtt.sessions.ALARM_S_MAX",
        "penstock_core.wire.scram.ROUNDS_MAX",
        "penstock_core.channel.dead.MOVED_EVENTS_MAX",
        "penstock_core.channel.recovery.SHORT_MAX",
        "penstock_core.channel.timeouts.ACK_TIMEOUT_MS_MAX",
        "penstock_core.durable.lanes.LANE_SEARCH_EVENTS_MAX",
        "penstock_core.durable.lanes.LANE_SEARCHES_MAX",
        "penstock_core.durable.seat.DEALT_MAX",
        "penstock_core.ids.bitmaps._ALONE_MAX",
        "penstock_core.messages.packing.RANGES_MAX",
        "penstock_core.realm.joins.HOPS_MAX",
        "penstock_core.bounds.SELECTORS_WORK_MAX",
        "penstock_core.bounds.MERGED_SELECTORS_WORK_MAX",
        "penstock_core.bounds.STAMPED_PREDICATES_MAX",
        "penstock_core.columns.schema.properties.COLUMN_NESTING_MAX",
        "penstock_core.backoff._DOUBLINGS_MAX",
        "penstock_core.columns.selectors.parser.DEPTH_MAX",
        "penstock_core.columns.selectors.patterns._AUTOMATON_ANY_MAX",
        "penstock_core.columns.selectors.patterns._AUTOMATON_ONE_MAX",
        "penstock_core.columns.selectors.patterns._AUTOMATON_ONE_OF_PIECE_MAX",
        "penstock_core.columns.selectors.patterns._AUTOMATON_TEXT_MAX",
        "penstock_core.columns.selectors.patterns.WILDCARDS_MAX",
        "penstock_core.columns.selectors.summaries._DEPTH_MAX",
        "penstock_core.vocabulary.backoff.DELAY_MS_MAX",
        "penstock_core.vocabulary.backoff.PIECES_MAX",
        "penstock_core.vocabulary.choice.WILD_IN_EXPRESSION_MAX",
        "penstock_server.runtime.access.passwords.CONCURRENT_MAX",
        "penstock_server.runtime.operations.reading_handlers.MATCHES_MAX",
        "penstock_server.runtime.store.channel_store.JUDGED_WORK_MAX",
        "penstock_server.runtime.store.channel_store.CRUMBS_MAX",
        "penstock_server.runtime.upkeep.compaction.ROUNDS_MAX",
        "penstock_server.runtime.upkeep.recovery.ATTEMPTS_MAX",
        "penstock_server.runtime.writer.channel_timers.SLEEP_S_MAX",
        "penstock_server.runtime.writer.dead_events.MOVING_PAUSE_S_MAX",
        "penstock_server.runtime.writer.room_forecast.COPIES_BYTES_MAX",
        "penstock_server.runtime.writer.selector_scan.CATCHING_UP_MAX",
        "penstock_cluster.bootstrap.relocating.ATTEMPTS_MAX",
        "penstock_cluster.cli.cluster_checks.APART_S_MAX",
        "penstock_cluster.nodes.cluster_orders.DONE_S_MAX",
        "penstock_cluster.nodes.fitness.NOT_RECOVERED_S_MAX",
        "penstock_cluster.nodes.local_names.RULED_S_MAX",
        "penstock_cluster.nodes.node.OPENINGS_MAX",
        "penstock_cluster.owning.clocks.APART_US_MAX",
        "penstock_cluster.owning.clocks.WRONG_US_MAX",
        "penstock_cluster.owning.lease.LEASE_S_MAX",
        "penstock_cluster.storage.jetstream.journal._POLLS_MAX",
        "access.lockout_max_s",
        "limits.requests_per_s_max",
    ),
    "of files that the operator or the realm writes, and of the engine": (
        "penstock_server.runtime.access.tokens.KEYS_BYTES_MAX",
        "penstock_server.runtime.reading.pipelines.STATUS_BYTES_MAX",
        "penstock_server.runtime.reading.pipelines.PIPELINES_MAX",
        "penstock_server.runtime.reading.pipelines.LOCK_CHARACTERS_MAX",
        "penstock_server.runtime.upkeep.compaction.JOINED_BYTES_MAX",
        "penstock_server.storage.audit_file.FILE_BYTES_MAX",
        "penstock_cluster.bootstrap.engine_peers._PORT_MAX",
        "penstock_cluster.bootstrap.engine_peers._LINE_BYTES_MAX",
        "penstock_cluster.nodes.roles._DAMAGES_MAX",
    ),
    "the default of a setting, which has a row": (
        "penstock_server.runtime.access.logins.OF_USER_MAX",
        "penstock_core.columns.schema.property_names.NAMES_MAX",
    ),
    "of the memory of a client or a Spark job": (
        "penstock_core.columns.events.single_event.KINDS_MAX",
        "penstock_spark.columns.rows.SHOWN_COLUMNS_MAX",
        "penstock_spark.columns.rows.SHOWN_CHARACTERS_MAX",
        "penstock_spark.errors.error_marks._MARK_TEXT_MAX",
        "penstock_spark.errors.failure_text._DEPTH_MAX",
        "penstock_spark.reading.plan.PARTITION_BYTES_MAX",
        "penstock_spark.reading.plan.WIRE_EVENTS_MAX",
        "penstock_spark.reading.poison.POISON_MAX",
        "penstock_spark.reading.reading.BATCH_BYTES_MAX",
        "penstock_spark.reading.sealed.VERIFIED_MAX",
        "penstock_spark.redriving.redrive.ATTEMPTS_MAX",
        "penstock_spark.session.pythons.INTERPRETER_MAX",
        "penstock_spark.writing.writing.PORTION_ROWS_MAX",
        "penstock_spark.writing.writing.PORTION_BYTES_MAX",
        "penstock_spark.writing.writing.CARRIED_BYTES_MAX",
    ),
}
"""Bounds and settings of which nothing that a client fills is kept in the realm, by what they are
of."""


def rows() -> list[list[str]]:
    """The rows of all tables, without their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[1] != "bound"]


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
    """The lines of caches without a bound that has a name. A cache of a function without parameters
    has one entry."""
    bounded, imported = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "functools":
            imported |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.FunctionDef) and not ast.unparse(node.args):
            bounded |= {id(decorator) for decorator in node.decorator_list}
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("lru_cache"):
            bounded.add(id(node.func))
            sizes = [*node.args, *(keyword.value for keyword in node.keywords)]
            if not any(isinstance(size, ast.Name) and size.id.endswith("_MAX") for size in sizes):
                yield node.lineno
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.Name) and node.id in imported
        is_attribute = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "functools"
        if (is_name or is_attribute) and id(node) not in bounded:
            name = ast.unparse(node).rpartition(".")[2]
            if name in ("lru_cache", "cache"):
                yield cast("ast.expr", node).lineno


def test_each_bound_has_one_row() -> None:
    counts = Counter(where.strip("`") for *_, where in ROWS)

    assert [where for where, count in counts.items() if count > 1] == []


def test_every_bound_of_what_clients_fill_is_on_the_page() -> None:
    """A new one gets a row, or is named above with what it is of."""
    documented = {where.strip("`") for *_, where in ROWS}
    exempt = {name for names in NO_MEMORY.values() for name in names}
    constants = {f"{module}.{bound}" for module, tree in fed_modules() for bound in bounds_in(tree)}
    settings = {path for path, _, _ in described() if _LIMITING_SETTING.search(path)}

    assert (constants | settings) - documented - exempt == set()
    assert exempt - constants - settings == set()
    assert exempt & documented == set()


def test_every_cache_that_clients_fill_has_a_bound() -> None:
    lines = [f"{name}:{line}" for name, tree in fed_modules() for line in unbounded_in(tree)]

    assert lines == []
