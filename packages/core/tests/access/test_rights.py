"""Subjects, rights and the table of operations (SEM A1, A2)."""

from __future__ import annotations

import pytest

from penstock_core.access.rights import (
    RIGHTS,
    Principal,
    Subject,
    checked_name,
    checked_rights,
    known_rights,
    parse_subject,
)
from penstock_core.api.operations import OPERATIONS
from penstock_core.vocabulary.errors import InvalidArgument

ALICE = Principal("alice", "10.0.0.1")


@pytest.mark.spec("A1")
@pytest.mark.parametrize(
    ("text", "covers"),
    [
        ("alice@10.0.0.1", True),
        ("alice@10.0.0.2", False),
        ("bob@10.0.0.1", False),
        ("alice@*", True),
        ("bob@*", False),
        ("*@10.0.0.1", True),
        ("*@10.0.0.2", False),
        ("*@*", True),
        ("group:ops", True),
        ("group:dev", False),
    ],
)
def test_a_subject_is_a_user_at_a_host_with_wildcards_or_a_group(text: str, covers: bool) -> None:
    subject = parse_subject(text)

    assert subject.covers(ALICE, frozenset({"ops"})) is covers
    assert str(subject) == text


def test_the_host_is_what_follows_the_last_at_sign() -> None:
    assert parse_subject("ann@example.com@*") == Subject("ann@example.com", "*")
    assert parse_subject("ann@::1") == Subject("ann", "::1")
    assert ALICE.name == "alice@10.0.0.1"


@pytest.mark.parametrize(
    "text",
    ["", "alice", "@host", "alice@", "a b@*", "al*@*", "a@10.*", "a@h h", "group:", "group:*"],
)
def test_what_is_no_subject_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"@|characters"):
        parse_subject(text)


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a:b", "a,b", "*", "bell\x07"])
def test_what_is_no_name_of_a_user_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a valid name of a user"):
        checked_name(name, "user")


@pytest.mark.spec("A2")
def test_the_rights_are_those_of_the_semantics() -> None:
    assert RIGHTS["realm"] == (
        "manage_acl",
        "full",
        "access",
        "configure",
        "channels",
        "realm",
        "admin",
        "monitor",
    )
    assert RIGHTS["channel"] == ("manage_acl", "full", "purge", "subscribe", "publish", "durable")
    assert RIGHTS["queue"] == ("manage_acl", "full", "purge", "peek", "push", "pop")


def test_rights_are_kept_in_their_order_each_once() -> None:
    assert checked_rights("channel", ("publish", "purge", "publish")) == ("purge", "publish")
    with pytest.raises(InvalidArgument, match="'pop' is not a right on a channel; the rights are"):
        checked_rights("channel", ("pop",))
    with pytest.raises(InvalidArgument, match="at least one right on the queue"):
        checked_rights("queue", ())
    with pytest.raises(InvalidArgument, match="'folder' is not a kind of resource"):
        known_rights("folder")


def test_every_operation_needs_rights_there_are() -> None:
    for operation, need in OPERATIONS.items():
        assert need.rights, operation
        assert {*need.rights} <= {*RIGHTS[need.kind]}, operation
        assert {*need.realm} <= {*RIGHTS["realm"]}, operation


@pytest.mark.spec("A2")
def test_who_monitors_sees_everything_and_takes_nothing() -> None:
    seen = {
        operation
        for operation, need in OPERATIONS.items()
        if "monitor" in (need.realm if need.kind != "realm" else (*need.rights, *need.realm))
    }

    assert not any(OPERATIONS[operation].audited for operation in seen)
    assert {*OPERATIONS} - seen == {
        *(name for name, need in OPERATIONS.items() if need.audited),
        *(name for name, need in OPERATIONS.items() if need.rights == ("access",)),
        "channel.publish",
        "channel.subscribe",
        "queue.push",
        "queue.peek",
        "queue.pop",
        "durable.attach",
        "durable.browse",
        "durable.delivery",
        "durable.preview",
    }


def test_every_right_is_good_for_something() -> None:
    useful: dict[str, set[str]] = {kind: set() for kind in RIGHTS}
    useful["topic"] |= {"publish", "subscribe", "durable"}  # asked by MQTT, of filters (SEM M15)
    for need in OPERATIONS.values():
        useful[need.kind] |= {*need.rights}
        useful["realm"] |= {*need.realm}

    for kind, rights in RIGHTS.items():
        assert {*rights} - useful[kind] <= {"full"}, kind
