"""The rights that access control lists grant (SEM A3)."""

from __future__ import annotations

import pytest

from penstock_core.access.acl import Acl, Entry
from penstock_core.access.rights import RIGHTS, Need, Principal
from penstock_core.api.operations import OPERATIONS

ALICE = Principal("alice", "10.0.0.1")


def acl(**entries: tuple[str, ...]) -> Acl:
    """Return access rights: entries of the channel ``orders`` by user, and access to the realm for
    all users."""
    made = Acl()
    made.put("realm", "", [Entry("*@*", ("access",))])
    made.put("channel", "orders", [Entry(f"{user}@*", rights) for user, rights in entries.items()])
    return made


@pytest.mark.spec("A3")
def test_the_effective_right_is_the_union_of_all_that_match() -> None:
    held = acl(alice=("publish",))
    held.put_groups({"ops": ["alice"]})
    held.put(
        "channel",
        "orders",
        [
            Entry("alice@10.0.0.1", ("publish",)),
            Entry("*@10.0.0.1", ("subscribe",)),
            Entry("group:ops", ("purge",)),
            Entry("bob@*", ("durable",)),
        ],
    )

    assert held.effective(ALICE, "channel", "orders") == {"publish", "subscribe", "purge"}


@pytest.mark.spec("A3")
def test_no_entry_is_no_right_and_the_refusal_names_it() -> None:
    refusal = acl().missing(ALICE, OPERATIONS["channel.publish"], "orders")

    assert refusal is not None
    assert "alice@10.0.0.1 lacks 'publish' on channel orders" in str(refusal)
    assert "penstock acl grant channel orders alice@* publish" in str(refusal)


@pytest.mark.spec("A2")
def test_full_stands_for_every_right_of_its_kind() -> None:
    assert acl(alice=("full",)).effective(ALICE, "channel", "orders") == {*RIGHTS["channel"]}


def test_full_and_manage_acl_on_the_realm_hold_everywhere() -> None:
    held = acl()
    held.put("realm", "", [Entry("alice@*", ("manage_acl", "admin"))])

    assert held.effective(ALICE, "queue", "work") == {"manage_acl"}

    held.put("realm", "", [Entry("alice@*", ("full",))])

    assert held.effective(ALICE, "queue", "work") == {*RIGHTS["queue"]}
    assert held.effective(ALICE, "realm") == {*RIGHTS["realm"]}


def test_without_access_to_the_realm_nothing_else_counts() -> None:
    held = acl(alice=("full",))
    held.put("realm", "", [Entry("alice@*", ("admin",))])

    refusal = held.missing(ALICE, OPERATIONS["channel.publish"], "orders")

    assert "lacks 'access' on the realm" in str(refusal)


def test_a_right_on_the_realm_may_do_instead() -> None:
    held = acl()
    held.put("realm", "", [Entry("alice@*", ("access", "admin"))])

    assert held.missing(ALICE, OPERATIONS["channel.maintain"], "orders") is None
    assert held.missing(ALICE, OPERATIONS["channel.publish"], "orders") is not None


def test_folders_and_stars_cover_what_lies_below() -> None:
    held = Acl()
    held.put("channel", "a/*", [Entry("alice@*", ("publish",))])
    held.put("channel", "*", [Entry("alice@*", ("subscribe",))])

    assert held.effective(ALICE, "channel", "a/b/c") == {"publish", "subscribe"}
    assert held.effective(ALICE, "channel", "a") == {"subscribe"}
    assert held.effective(ALICE, "channel", "ab/c") == {"subscribe"}
    assert held.effective(ALICE, "queue", "a/b") == set()
    assert held.resources() == [("channel", "*"), ("channel", "a/*")]


def test_granting_adds_and_revoking_takes_away() -> None:
    held = acl(alice=("publish",))
    granted = held.granted("channel", "orders", "alice@*", rights=("subscribe",))
    held.put("channel", "orders", granted)

    assert held.entries("channel", "orders") == [Entry("alice@*", ("subscribe", "publish"))]

    held.put("channel", "orders", held.revoked("channel", "orders", "alice@*", rights=("publish",)))

    assert held.entries("channel", "orders") == [Entry("alice@*", ("subscribe",))]
    assert held.revoked("channel", "orders", "alice@*", rights=RIGHTS["channel"]) == []

    held.put("channel", "orders", [])

    assert held.entries("channel", "orders") == []


def test_groups_are_those_of_the_realm_and_those_of_a_token() -> None:
    held = acl()
    held.put_groups({"ops": ["alice", "bob"], "dev": ["bob"]})

    assert held.groups_of(Principal("alice", "h", frozenset({"sso"}))) == {"ops", "sso"}
    assert held.groups["dev"] == {"bob"}


def test_this_very_process_may_do_everything() -> None:
    trusted = Principal("anybody", "localhost", trusted=True)

    assert Acl().effective(trusted, "channel", "orders") == {*RIGHTS["channel"]}
    assert Acl().missing(trusted, Need("realm", ("admin",))) is None


def test_a_refusal_of_any_right_says_so() -> None:
    refusal = acl().missing(ALICE, OPERATIONS["channel.open"], "orders")

    assert "lacks any right on channel orders" in str(refusal)
    assert "alice@* subscribe" in str(refusal)
