"""Names that clients choose are their user's: producers, stages, transactions (SEM X)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.api.publishing import CommitStagedParts, DropStages
from penstock_core.api.transactions import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    DescribeTransaction,
)
from penstock_core.vocabulary.errors import InvalidArgument, NoSuchStage, NoSuchTransaction
from tests.asking import ask

pytestmark = pytest.mark.spec("A3")

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def alice(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as trusted:
        trusted.access.create_user("bob", "secret")
        for name in ("orders", "other"):
            trusted.channels.create(name, type="persistent")
            trusted.access.grant("*@*", "access")
            trusted.access.grant("*@*", "publish", "subscribe", channel=name)
    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        yield session


@pytest.fixture
def bob(realm: penstock.Realm, alice: Session) -> Iterator[Session]:
    with penstock.connect(realm.listen().replace("://", "://bob:secret@")) as session:
        yield session


@pytest.mark.spec("X3")
def test_a_user_cannot_use_sequences_of_another_users_producer(
    alice: Session, bob: Session
) -> None:
    claimed = bob.channels.get("orders")
    claimed.commit_stages(claimed.stage(TABLE), producer="txn:job", sequence=7)
    orders = alice.channels.get("orders")
    stored = orders.commit_stages(orders.stage(TABLE), producer="txn:job", sequence=7)

    assert orders.info().counters.published == 6
    assert orders.commit_stages([], producer="txn:job", sequence=7) == stored


@pytest.mark.spec("X3")
def test_a_user_cannot_drop_or_commit_another_users_stage(alice: Session, bob: Session) -> None:
    orders = alice.channels.get("orders")
    stages = orders.stage(TABLE)
    names = tuple(stages)
    ask(bob, DropStages(names))
    with pytest.raises(NoSuchStage):
        bob.channels.get("orders").commit_stages(names, producer="bobs", sequence=1)

    assert len(orders.commit_stages(stages, producer="mine", sequence=1)) == 3


@pytest.mark.spec("X2")
def test_a_user_cannot_end_or_describe_another_users_transaction(
    alice: Session, bob: Session
) -> None:
    number = alice.channels.get("orders").number
    ask(alice, BeginTransaction("tx", (number,)))
    for request in (
        DescribeTransaction("tx"),
        AbortTransaction("tx"),
        CommitTransaction("tx", ()),
    ):
        with pytest.raises(NoSuchTransaction, match="no transaction tx:"):
            ask(bob, request)

    assert ask(alice, DescribeTransaction("tx"))["state"] == "open"
    with pytest.raises(InvalidArgument, match="control character"):
        ask(bob, AbortTransaction("tx\x1falice"))


@pytest.mark.spec("X3")
def test_a_remembered_answer_names_only_stores_of_its_request(alice: Session) -> None:
    orders, second = alice.channels.get("orders"), alice.channels.get("other")
    parts = tuple((channel.number, tuple(channel.stage(TABLE))) for channel in (orders, second))
    spans = ask(alice, CommitStagedParts("job", 1, parts))
    again = ask(alice, CommitStagedParts("job", 1, ((second.number, ()),)))

    assert [number for number, _ in spans["spans"]] == [number for number, _ in parts]
    assert again["spans"] == [span for span in spans["spans"] if span[0] == second.number]


@pytest.mark.spec("L1")
def test_a_join_ends_with_the_rights_of_its_creator(realm: penstock.Realm, alice: Session) -> None:
    with realm.connect() as trusted:
        trusted.access.grant("alice@*", "realm")
        alice.joins.create("orders", "other")
        [made] = trusted.joins.list()
        trusted.access.grant("bob@*", "subscribe", channel="orders")
        trusted.access.revoke("bob@*", channel="orders")
        kept = trusted.joins.list()
        trusted.channels.get("orders").publish(b"copied")

        trusted.access.revoke("*@*", "subscribe", channel="orders")
        trusted.channels.get("orders").publish(b"not copied")

        assert (made.owner, kept) == ("alice@127.0.0.1", [made])
        assert trusted.joins.list() == []
        assert [event.data for event in trusted.channels.get("other").browse()] == [b"copied"]
        [ended] = [
            record
            for record in trusted.access.audit(kind="refusals")
            if record.operation == "join.delete"
        ]
        assert (ended.principal, ended.outcome) == ("alice@127.0.0.1", "access-denied")


@pytest.mark.spec("L5")
def test_a_join_of_the_realm_itself_has_no_owner_and_stays(realm: penstock.Realm) -> None:
    with realm.connect() as trusted:
        trusted.channels.create("a")
        trusted.channels.create("b")
        trusted.joins.create("a", "b")
        trusted.access.grant("alice@*", "realm")
        trusted.access.revoke("alice@*", "realm")

        assert [join.owner for join in trusted.joins.list()] == [""]
