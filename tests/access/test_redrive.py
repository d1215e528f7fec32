"""Redrive publishes where events came from: the row of the matrix it has of its own (SEM A2, T10).

``purge`` on the dead event store lets events leave it; each place they go back to asks for the
right to publish there.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.access.rights import RIGHTS
from penstock_core.vocabulary.errors import AccessDenied

ORIGINS = [(kind, right) for kind in ("channel", "queue") for right in (*RIGHTS[kind], "")]
NAMES = {"channel": "origin/channel", "queue": "origin/queue"}
WRITES = {"channel": {"publish", "full"}, "queue": {"push", "full"}}

Redrive = Callable[..., int]


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    """Two places with one dead event each, in separate stores, and a third one with both."""
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
    ) as realm:
        with realm.connect() as session:
            for kind in ("channel", "queue"):
                session.channels.create(f"dead/{kind}")
                makes: Any = session.channels if kind == "channel" else session.queues
                made = makes.create(NAMES[kind], capacity=1, dead_event_store=f"dead/{kind}")
                for _ in range(2):
                    (made.publish if kind == "channel" else made.push)(b"x")
                made.edit(capacity=0)
                session.access.create_user(f"{kind}s-user", "secret")
                session.access.grant(f"{kind}s-user@*", "access")
                session.access.grant(
                    f"{kind}s-user@*", "purge", "subscribe", channel=f"dead/{kind}"
                )
        yield realm


@pytest.fixture(params=["native", "http"])
def redrive(request: pytest.FixtureRequest, realm: penstock.Realm) -> Redrive:
    """Redrive as a user over one front end; return the number of moved events."""

    def native(user: str, store: str, dry_run: bool = False) -> int:
        url = realm.listen().replace("://", f"://{user}:secret@")
        with penstock.connect(url) as session:
            return session.redrive(store, dry_run=dry_run).moved

    def http(user: str, store: str, dry_run: bool = False) -> int:
        secret = base64.b64encode(f"{user}:secret".encode()).decode()
        reply = Web(realm.listen_http()).ask(
            "POST",
            "redrive",
            {"source": store, "dry_run": dry_run},
            headers={"authorization": f"Basic {secret}"},
        )
        if reply.status == 403:
            raise AccessDenied(reply.reason)
        return int(reply.document["moved"])

    return native if request.param == "native" else http


@pytest.mark.spec("A2", "A3", "T10")
@pytest.mark.parametrize(("kind", "right"), ORIGINS)
def test_a_redrive_needs_the_right_to_publish_to_the_origin(
    realm: penstock.Realm, redrive: Redrive, kind: str, right: str
) -> None:
    with realm.connect() as session:
        if right:
            session.access.grant(f"{kind}s-user@*", right, **{kind: NAMES[kind]})
    if right in WRITES[kind]:
        assert redrive(f"{kind}s-user", f"dead/{kind}", dry_run=True) == 1
        assert redrive(f"{kind}s-user", f"dead/{kind}") == 1
        return

    needed = "'push'" if kind == "queue" else "'publish'"
    for dry_run in (True, False):
        with pytest.raises(AccessDenied, match=needed) as refused:
            redrive(f"{kind}s-user", f"dead/{kind}", dry_run=dry_run)
        assert (NAMES[kind] in str(refused.value)) == bool(right), "names stay with who sees them"
    with realm.connect() as session:
        assert session.channels.get(f"dead/{kind}").info().events == 1


@pytest.mark.spec("A3")
def test_a_refused_redrive_is_in_the_audit_log(realm: penstock.Realm, redrive: Redrive) -> None:
    with pytest.raises(AccessDenied):
        redrive("channels-user", "dead/channel")

    with realm.connect() as session:
        [newest, *_] = session.access.audit(kind="refusals")
    assert (newest.operation, newest.outcome) == ("channel.redrive", "access-denied")
