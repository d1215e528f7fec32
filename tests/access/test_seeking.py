"""The rights to move a durable and to preview a move, and its audit record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock_core.api.channels import OpenChannel
from penstock_core.api.durables import PreviewSeek
from penstock_core.vocabulary.errors import AccessDenied
from penstock_core.vocabulary.start_positions import FromLatest
from tests.access.realms import QUICK
from tests.asking import ask

pytestmark = pytest.mark.spec("D20", "A2")


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    """A channel with a durable, and a user for each right there."""
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            orders = session.channels.create("orders", retain_consumed=True)
            orders.durables.create("billing")
            orders.publish_many([penstock.Event()] * 3)
            for right in ("durable", "subscribe", "publish"):
                session.access.create_user(right, "secret")
                session.access.grant(f"{right}@*", "access")
                session.access.grant(f"{right}@*", right, channel="orders")
        yield realm


def as_user(realm: penstock.Realm, user: str) -> penstock.Session:
    return penstock.connect(realm.listen().replace("://", f"://{user}:secret@"))


def test_a_seek_needs_the_right_durable_and_is_audited(realm: penstock.Realm) -> None:
    with as_user(realm, "durable") as session:
        session.channels.get("orders").durables.get("billing").seek("latest")
    with realm.connect() as trusted:
        [newest] = trusted.access.audit(1)

    assert (newest.operation, newest.target) == ("durable.seek", "orders")
    assert newest.principal.startswith("durable@")


def test_subscribers_may_preview_a_seek_but_not_make_it(
    realm: penstock.Realm,
) -> None:
    with as_user(realm, "subscribe") as session, realm.connect() as trusted:
        before = trusted.access.audit()
        billing = session.channels.get("orders").durables.get("billing")

        assert billing.seek("latest", preview=True).skipped == 3
        assert trusted.access.audit() == before, "a look is not audited"
        with pytest.raises(AccessDenied, match="durable"):
            billing.seek("latest")
        assert billing.info().outstanding == 3


def test_other_users_cannot_preview_a_seek(realm: penstock.Realm) -> None:
    with as_user(realm, "publish") as session:
        number = ask(session, OpenChannel("orders"))["channel"]

        with pytest.raises(AccessDenied, match="subscribe"):
            ask(session, PreviewSeek(number, "billing", FromLatest()))
