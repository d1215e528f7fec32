"""Requests that need several rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_core.api.channels import EditChannel, PurgeChannel
from penstock_core.api.durables import CreateDurable, PurgeDurable
from penstock_core.api.joins import CreateJoin, Redrive
from penstock_core.api.publishing import CommitStagedParts
from penstock_core.api.requests import Request
from penstock_core.api.transactions import (
    BeginTransaction,
    CommitTransaction,
    Leaving,
    TransactionPart,
)
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest

Right = tuple[str, str]
"""A right and the resource it is for."""


Native = Callable[[dict[str, ChannelId]], Request[Any]]


PURGE, READ, DURABLE = ("orders", "purge"), ("orders", "subscribe"), ("orders", "durable")
FULL, BURY = ("orders", "full"), ("dead", "publish")
JOINS, PUBLISH = ("", "realm"), ("orders", "publish")
TOPICS = ("mqtt", "full")


CASES: dict[str, tuple[tuple[Right, ...], Native, tuple[str, str, Any] | None]] = {
    "purge by selector": (
        (PURGE, READ),
        lambda n: PurgeChannel(n["orders"], 0, 0, selector="a = 1"),
        ("POST", "channels/orders/purge", {"selector": "a = 1"}),
    ),
    "dry run of a purge": (
        (PURGE, READ),
        lambda n: PurgeChannel(n["orders"], 0, 0, selector="a = 1"),
        ("POST", "channels/orders/purge", {"dry_run": True}),
    ),
    "purge of a durable by selector": (
        (DURABLE, READ),
        lambda n: PurgeDurable(n["orders"], "kept", 0, last_id=0, selector="a = 1"),
        ("POST", "channels/orders/durables/kept/purge", {"selector": "a = 1"}),
    ),
    "a durable with a selector": (
        (DURABLE, READ),
        lambda n: CreateDurable(
            n["orders"], "kept", "shared", start=FromEarliest(), selector="a = 1"
        ),
        ("POST", "channels/orders/durables", {"name": "kept", "selector": "a = 1"}),
    ),
    "redrive by selector": (
        (PURGE, READ),
        lambda n: Redrive("orders", "", "a = 1"),
        ("POST", "redrive", {"source": "orders", "selector": "a = 1"}),
    ),
    "dry run of a redrive": (
        (PURGE, READ),
        lambda n: Redrive("orders", "", "", dry_run=True),
        ("POST", "redrive", {"source": "orders", "dry_run": True}),
    ),
    "redrive to a named destination": (
        (PURGE, READ, BURY),
        lambda n: Redrive("orders", "dead"),
        ("POST", "redrive", {"source": "orders", "destination": "dead"}),
    ),
    "another dead event store": (
        (FULL, BURY),
        lambda n: EditChannel("orders", Definition(dead_event_store="dead")),
        ("PATCH", "channels/orders", {"dead_event_store": "dead"}),
    ),
    "topics of MQTT": (
        (FULL, TOPICS),
        lambda n: EditChannel("orders", Definition(topics=("a/#",))),
        ("PATCH", "channels/orders", {"topics": ["a/#"]}),
    ),
    "a join": (
        (JOINS, READ, BURY),
        lambda n: CreateJoin("orders", "dead"),
        ("POST", "joins", {"source": "orders", "destination": "dead"}),
    ),
    "a transaction over two channels": (
        (PUBLISH, BURY),
        lambda n: BeginTransaction("both", (n["orders"], n["dead"])),
        None,
    ),
    "a commit to two channels": (
        (PUBLISH, BURY),
        lambda n: CommitTransaction(
            "both", (TransactionPart(n["orders"], 0, ()), TransactionPart(n["dead"], 0, ()))
        ),
        None,
    ),
    "a commit of stages of two channels": (
        (PUBLISH, BURY),
        lambda n: CommitStagedParts("both", 1, ((n["orders"], ("a",)), (n["dead"], ("b",)))),
        None,
    ),
    "a commit that takes from another channel": (
        (PURGE, BURY),
        lambda n: CommitTransaction(
            "both", (TransactionPart(n["dead"], 0, ()),), (Leaving(n["orders"], (), ()),)
        ),
        None,
    ),
}
"""Requests that need several rights: the rights, the native request, and the HTTP request (None:
HTTP has none)."""
