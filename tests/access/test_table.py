"""The one table of operations, and the requests that ask for them: neither may forget the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock_core.access.rights import RIGHTS, Principal
from penstock_core.api.access import Grant, ListEntries, Revoke, SetPassword
from penstock_core.api.channels import EditChannel, ListChannels, OpenChannel
from penstock_core.api.joins import CopyIn, DeleteJoin
from penstock_core.api.operations import (
    OPERATIONS,
    PUBLISH,
    READ,
    REQUESTS,
    ByName,
    DeadEventsRead,
    DeadEventStore,
    NamedTarget,
    Numbered,
    OfKind,
    OfResource,
    OnRealm,
    PasswordTarget,
    TopicsGiven,
)
from penstock_core.api.patterns import WatchChannels
from penstock_core.api.reading import WatchEvents
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, BrowseDurable, Settle, Subscribe, Unsubscribe
from penstock_core.api.transfers import ImportTar, PutImport
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.wire.native.tags import TAGS
from penstock_server.bootstrap import rules
from penstock_server.frontends.http.routes import TABLE
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.access.permits import Permits
from penstock_server.runtime.operations.beginners import BEGINNERS
from penstock_server.runtime.operations.handlers import HANDLERS, registered_handlers
from penstock_server.runtime.writer.clock import SystemClock
from tests.access.native_adapter import Native

CONNECTIONS_OWN = {
    Subscribe,
    Attach,
    BrowseDurable,
    WatchEvents,
    WatchChannels,
    Unsubscribe,
    CopyIn,
    PutImport,
    ImportTar,
}
"""Requests that the front ends run where their events, seats or bytes are."""


@pytest.mark.parametrize("request_type", TAGS.values(), ids=lambda operation: operation.__name__)
def test_every_request_is_in_the_table_and_is_done_in_exactly_one_way(
    request_type: type[Request[Any]],
) -> None:
    assert request_type in REQUESTS
    ways = HANDLERS, registered_handlers(), BEGINNERS, CONNECTIONS_OWN

    assert [request_type in way for way in ways].count(True) == 1


def test_the_tables_have_only_known_requests() -> None:
    assert {*HANDLERS, *registered_handlers(), *BEGINNERS, *CONNECTIONS_OWN} == {*REQUESTS}
    assert {*TAGS.values()} <= {*REQUESTS}


def test_every_route_asks_a_request_of_the_table() -> None:
    silent = [route.name for route in TABLE.routes if route.asks is None]

    assert silent == ["getOpenApi"]
    assert {route.asks for route in TABLE.routes if route.asks is not None} <= {*REQUESTS}
    assert {route.operation for route in TABLE.routes} <= {*OPERATIONS}


def named_by_tables() -> Iterator[str]:
    for request_type in TAGS.values():
        for ask in REQUESTS[request_type].asks:
            match ask:
                case Numbered(pair) | ByName(pair):
                    yield from pair
                case OnRealm(name):
                    yield name
                case OfKind(_, verb) | NamedTarget(_, verb):
                    yield from (f"channel.{verb}", f"queue.{verb}")
                case PasswordTarget():
                    yield from ("me.password", "user.change")
                case OfResource(verb):
                    yield from (f"{kind}.{verb}" for kind in RIGHTS)
                case DeadEventStore() | DeadEventsRead():
                    yield from (*READ, *PUBLISH)
                case TopicsGiven():
                    yield "channel.edit"
    yield "session.open"


def test_every_operation_has_a_native_request_or_is_listed_as_missing() -> None:
    in_tables = {*named_by_tables()}

    assert in_tables <= OPERATIONS.keys()
    assert OPERATIONS.keys() - in_tables == Native.without


@pytest.fixture
def allowed() -> Permits:
    access = AccessControl.off(SystemClock())
    directory = Directory(rules())
    return Permits(access, directory, Principal("alice", "h"))


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (OpenChannel("a//b", "queue"), [("queue.open", "a/b")]),
        (EditChannel("a", Definition(kind="queue")), [("queue.edit", "a")]),
        (ListChannels("queue"), [("queue.list", "")]),
        (Grant("realm", "", "a@*", rights=("full",)), [("realm.acl.change", "")]),
        (ListEntries("channel", "x::y"), [("channel.acl.read", "x/y")]),
        (ListEntries("queue", "x/*"), [("queue.acl.read", "x/*")]),
        (Grant("topic", "a//+", "a@*", rights=("full",)), [("topic.acl.change", "a//+")]),
        (SetPassword("bob", None), [("user.change", "")]),  # type: ignore[arg-type]  # not read
        (Settle(1, ()), []),
    ],
)
def test_a_request_asks_for_operations_on_names_in_one_form(
    allowed: Permits, message: Request[Any], needed: list[tuple[str, str]]
) -> None:
    assert list(allowed.needed(message)) == needed


@pytest.mark.parametrize(
    "message",
    [
        EditChannel("a", Definition(kind="schedule")),
        Grant("folder", "a", "a@*", rights=("full",)),
        Grant("realm", "name", "a@*", rights=("full",)),
    ],
)
def test_an_unknown_kind_of_store_is_refused(allowed: Permits, message: Request[Any]) -> None:
    with pytest.raises(InvalidArgument):
        list(allowed.needed(message))


def test_every_audit_record_has_its_target() -> None:
    target = REQUESTS[Revoke].about(Revoke("channel", "a", "bob@*"))

    assert target == "channel a: -all bob@*"
    assert REQUESTS[DeleteJoin].about(DeleteJoin("a", "b")) == "a -> b"
