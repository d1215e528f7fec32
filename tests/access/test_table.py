"""The one table of operations, and the requests that ask for them: neither may forget the other."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import pytest

from penstock.api import access as accounts
from penstock.core.access.rights import OPERATIONS, Principal
from penstock.core.realm.directory import Directory
from penstock.core.vocabulary.errors import InvalidArgument
from penstock.core.vocabulary.messages import Definition
from penstock.frontends.native import permissions
from penstock.frontends.native.permissions import (
    BY_NAME,
    BY_NUMBER,
    ON_REALM,
    OWN,
    SEVERAL,
    Permits,
)
from penstock.runtime.access.access import Access
from penstock.runtime.clock import SystemClock
from penstock.wire.native import messages as wire
from tests.access.native_adapter import Native

TABLES = (BY_NUMBER, BY_NAME, ON_REALM, OWN, SEVERAL)


def requests() -> list[type[wire.Request]]:
    every = typing.get_args(wire.FromClient)
    return [each for each in every if issubclass(each, wire.Request)]


@pytest.mark.parametrize("request_type", requests(), ids=lambda each: each.__name__)
def test_every_request_is_in_exactly_one_table(request_type: type[wire.Request]) -> None:
    assert [request_type in table for table in TABLES].count(True) == 1


def test_the_tables_hold_nothing_else() -> None:
    assert {each for table in TABLES for each in table} == {*requests()}


def named_by_tables() -> Iterator[str]:
    for pair in BY_NUMBER.values():
        yield from pair
    for suffix in BY_NAME.values():
        yield from (f"channel.{suffix}", f"queue.{suffix}")
    yield from ON_REALM.values()
    for kind in ("channel", "queue"):
        yield from (f"{kind}.{each}" for each in ("create", "edit", "list", "redrive"))
    yield from ("channel.import", "join.create", "me.password", "session.open")
    for kind in ("realm", "channel", "queue"):
        yield from (f"{kind}.acl.read", f"{kind}.acl.change")


def test_every_operation_can_be_asked_for_natively_or_is_said_to_be_missing() -> None:
    asked = {*named_by_tables()}

    assert asked <= OPERATIONS.keys()
    assert OPERATIONS.keys() - asked == Native.without


@pytest.fixture
def allowed() -> Permits:
    access = Access.off(SystemClock())
    directory = Directory.__new__(Directory)
    return Permits(access, directory, Principal("alice", "h"))


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        (wire.OpenChannel(0, "a//b", "queue"), [("queue.open", "a/b")]),
        (wire.EditChannel(0, "a", Definition(kind="queue")), [("queue.edit", "a")]),
        (wire.ListChannels(0, "queue"), [("queue.list", "")]),
        (accounts.Grant(0, "realm", "", "a@*", ("full",)), [("realm.acl.change", "")]),
        (accounts.ListEntries(0, "channel", "x::y"), [("channel.acl.read", "x/y")]),
        (accounts.ListEntries(0, "queue", "x/*"), [("queue.acl.read", "x/*")]),
        (accounts.SetPassword(0, "bob", None), [("user.change", "")]),  # type: ignore[arg-type]  # not read
        (wire.Settle(0, 1, ()), []),
    ],
)
def test_a_request_asks_for_operations_on_names_in_one_form(
    allowed: Permits, message: wire.Request, asked: list[tuple[str, str]]
) -> None:
    assert list(allowed.asked(message)) == asked


@pytest.mark.parametrize(
    "message",
    [
        wire.EditChannel(0, "a", Definition(kind="schedule")),
        accounts.Grant(0, "folder", "a", "a@*", ("full",)),
        accounts.Grant(0, "realm", "name", "a@*", ("full",)),
    ],
)
def test_what_is_neither_channel_nor_queue_is_refused(
    allowed: Permits, message: wire.Request
) -> None:
    with pytest.raises(InvalidArgument):
        list(allowed.asked(message))


def test_what_an_audit_record_is_about_is_told() -> None:
    told = permissions._target(accounts.Revoke(0, "channel", "a", "bob@*"))

    assert told == "channel a: -all bob@*"
    assert permissions._target(wire.DeleteJoin(0, "a", "b")) == "a -> b"
