"""The rules of the semantics that the simulation covers, by scene, and those that other tests
cover."""

from __future__ import annotations

RULES: dict[str, tuple[str, ...]] = {
    "asked": ("R1", "R2", "R3"),
    "born": ("D21", "D22"),
    "breathing": ("D18", "D19", "E9", "Q3", "T7", "T11"),
    "chain": ("C1g", "T1", "T3", "T4", "T5", "T7", "T8", "T9"),
    "dead": ("C1a", "C1b", "C3", "T1", "T2", "T3", "T5", "T6", "T7", "T8", "T9", "T10"),
    "durables": ("C1a", "C1b", "E6", "E9", "S", "T8"),
    "followed": ("E6", "K2", "K3", "K4", "X3"),
    "jms": ("C1g", "J2", "J3", "J5", "J6", "X3"),
    "joined": ("C1g", "E3", "L1", "L2", "L3", "L5"),
    "keyed": ("C1g", "K1", "T8"),
    "leased": ("D18", "D19", "H1", "H2", "H4"),
    "lent": ("D13", "J5", "X2", "X3"),
    "memory": ("C1c", "C1d", "C1f", "C1g", "E4", "E5"),
    "merged": ("C1g", "E6", "K2", "K3", "K4", "T8"),
    "ordered": ("C1g", "D11", "D12", "D13", "T8", "X3"),
    "passing": ("C1e", "E4", "E8", "T8"),
    "paused": ("L1", "X1", "X3", "X4", "X5"),
    "queues": ("C1g", "E9", "Q1", "Q2", "Q3", "T10"),
    "scheduled": ("T8", "X4"),
    "sought": ("D20",),
    "timed": ("T1", "X4"),
    "transfers": ("L1", "X1", "X2", "X3", "X4"),
    "travel": ("C7",),
    "wired": ("C1g", "D4", "D13", "D14", "D15", "E6", "Q1", "Q2", "Q3", "T8", "X1", "X2", "X3"),
}
"""Rules whose violation the oracles of a scene would notice."""

ROT = ("S1",)
"""Covered by ``tests.sim.rot``."""

MQTT = ("M2", "M5", "M6", "M7", "M8", "M12", "M13", "M14", "M15")
"""Covered by ``tests.sim.mqtt_world``, ``mqtt_fleet`` and ``mqtt_failovers``."""

ELSEWHERE: dict[str, str] = {
    "M1": "refusals and their reasons: packages/mqtt/tests/test_connections.py, tests/fuzz",
    "M3": "native events: packages/mqtt/tests/test_connections.py",
    "M4": "rights on channels: packages/mqtt/tests/test_fan_out.py",
    "M9": "groups: packages/mqtt/tests/test_shared.py",
    "M10": "WebSockets: packages/mqtt/tests/test_websocket.py",
    "M11": "signing in: packages/mqtt/tests/test_signing_in.py",
    "M16": "the type of a payload: packages/mqtt/tests/test_protobuf.py",
    "D1": "state on one channel, independent of others: tests/runtime/test_durables.py",
    "D2": "names that clash or miss: tests/runtime/test_durables.py",
    "D3": "attributes at creation: tests/runtime/test_durables.py",
    "D5": "fetches and handlers: packages/client/tests/test_durables.py",
    "D6": "a rule of the channel: "
    "packages/core/tests/durable/test_durable.py; `durables` checks its end",
    "D7": "retention against durables: packages/core/tests/durable/test_durable.py",
    "D8": "the order of turns: packages/core/tests/durables/test_shared.py",
    "D9": "windows: packages/core/tests/durables/test_shared.py",
    "D10": "one at a time: packages/core/tests/durables/test_serial.py",
    "D16": "browses: tests/runtime/test_durables.py",
    "D17": "the shown values: tests/runtime/test_durables.py",
    "J1": "the default engine is what all other scenes play: "
    "packages/core/tests/engines/test_default.py",
    "J4": "that nothing is written: packages/server/tests/runtime/test_jms.py",
    "J7": "acknowledged by the client itself: packages/server/tests/runtime/test_jms.py",
    "E1": "what an event carries: packages/core/tests/columns, packages/client/tests",
    "E2": "types of properties and their conversions: packages/core/tests/columns, "
    "packages/client/tests",
    "E10": "one column of numbers, shown and not stored: "
    "packages/core/tests/columns/test_number_columns.py",
    "E11": "events from tables: packages/core/tests/columns/test_tables.py",
    "E12": "streams over HTTP: packages/server/tests/frontends/http/test_event_streams.py",
    "E13": "trace contexts: tests/integration/test_trace_context.py, "
    "packages/server/tests/frontends/http/test_trace_context.py",
    "D23": "states of events: packages/core/tests/channel/test_delivery_state.py",
    "E7": "events that are too large: "
    "packages/core/tests/channel/test_publish.py, packages/client/tests/test_channels.py",
    "C1": "how types are shown: packages/server/tests/cli/test_channels.py",
    "C2": "names are checked before anything is stored: "
    "packages/core/tests/vocabulary/test_names.py",
    "C4": "combinations are refused at creation: packages/core/tests/realm/test_directory.py",
    "C5": "a flag that is kept: packages/core/tests/realm/test_directory.py",
    "C6": "no scene comes near a memory limit: packages/server/tests/runtime/test_memory_kinds.py",
    "K5": "history is read, not written: packages/client/tests/test_merging.py",
    "Q4": "peeks: packages/server/tests/runtime/test_queues.py, "
    "packages/client/tests/test_queues.py",
    "Q5": "keys on queues: packages/core/tests/durable/test_queue.py, "
    "packages/server/tests/runtime/test_keys.py",
    "R4": "bounds of temporary destinations: tests/access/test_replying.py",
    "H3": "bounds and owners of leases: packages/server/tests/frontends/http/test_consuming.py",
    "L4": "joins are made before the first publish: "
    "packages/server/tests/runtime/test_join_copies.py",
}
"""Implemented rules of these chapters that no scene covers, with the tests that do."""

CHAPTERS = ("E", "C", "T", "S", "K", "Q", "R", "X", "L", "D", "J", "H", "M")
