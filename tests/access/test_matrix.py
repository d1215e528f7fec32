"""Every operation x every right, over every front end (SEM A2, A3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

import penstock
from penstock_core.access.rights import RIGHTS
from penstock_core.api.operations import OPERATIONS
from penstock_core.vocabulary.errors import AccessDenied, PenstockError
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import RouteMatch
from tests.access import (  # noqa: F401  they register themselves
    http_adapter,
    lines_adapter,
    mqtt_adapter,
    native_adapter,
)
from tests.access.http_adapter import ASKED
from tests.access.matrix import (
    ADAPTERS,
    CHANNEL,
    OTHER,
    PASSWORD,
    QUEUE,
    TOPICS,
    USER,
    Adapter,
    Caller,
)
from tests.through_a_node import through_a_node

if find_spec("proton") is not None:  # packages/amqp/tests/test_installed.py says why it is not
    from tests.access import amqp_adapter  # noqa: F401

# These show to everybody what they may see anyway; the rest of them is in tests of their own.
FILTERED = {("POST", "logout"), ("GET", "schedule"), ("GET", "live")}
EVERY_RIGHT = [(kind, right) for kind, rights in RIGHTS.items() for right in rights]
WHERE = {"realm": "", "channel": CHANNEL, "queue": QUEUE, "topic": TOPICS}


@pytest.fixture(
    scope="module", params=["the owner", pytest.param("another node", marks=pytest.mark.slow)]
)
def realm(request: pytest.FixtureRequest) -> Iterator[penstock.Realm]:
    """With a channel and a queue that cannot be deleted, for others bury their dead there."""
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        with realm.connect() as session:
            channel = session.channels.create(CHANNEL)
            channel.durables.create("kept", type="shared")
            session.queues.create(QUEUE)
            session.channels.create(f"{CHANNEL}-dying", dead_event_store=CHANNEL)
            session.channels.create(f"{QUEUE}-dying", dead_event_store=QUEUE)
            session.channels.create(OTHER)
            session.access.create_user(USER, PASSWORD)
            session.access.create_user("guard", PASSWORD)
            session.access.grant("*@*", "subscribe", "publish", channel=OTHER)
        if request.param == "the owner":
            yield realm
            return
        with through_a_node(realm) as node:
            yield realm
            assert node.relays.begun, "everybody came through the node"


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]()


@pytest.fixture
def granted(realm: penstock.Realm) -> Iterator[Callable[[str, str], None]]:
    """Gives rights to the user, and takes all away again."""
    with realm.connect() as session:

        def grant(kind: str, right: str) -> None:
            where = {} if kind == "realm" else {kind: WHERE[kind]}
            session.access.grant(f"{USER}@*", right, **where)

        yield grant
        session.access.revoke(f"{USER}@*")
        session.access.revoke(f"{USER}@*", channel=CHANNEL)
        session.access.revoke(f"{USER}@*", queue=QUEUE)
        session.access.revoke(f"{USER}@*", topic=TOPICS)


def is_allowed(caller: Caller, operation: str) -> bool:
    """Whatever else the realm has against it: it was not for want of a right."""
    try:
        caller.try_(operation)
    except AccessDenied as error:
        need = OPERATIONS[operation]
        wanted = [f"'{right}'" for right in need.rights]
        if not any(words in str(error) for words in ["any right", *wanted]):
            raise AssertionError(f"{operation} wants {wanted}, and not: {error}") from error
        return False
    except PenstockError:
        return True
    return True


def suffices(kind: str, right: str, operation: str) -> bool:
    """The rules of the table and of SEM A2, written down a second time."""
    need = OPERATIONS[operation]
    if kind == "realm" and right == "full":
        return True
    if kind == "realm" and right == "manage_acl" and "manage_acl" in need.rights:
        return True
    if kind == need.kind:
        return right in need.rights or right == "full" or right in need.realm
    return kind == "realm" and right in need.realm


@pytest.mark.spec("A2", "A3")
@pytest.mark.parametrize(("kind", "right"), EVERY_RIGHT, ids=lambda value: str(value))
def test_a_right_allows_what_it_is_for_and_nothing_else(
    realm: penstock.Realm,
    adapter: Adapter,
    granted: Callable[[str, str], None],
    kind: str,
    right: str,
) -> None:
    granted("realm", "access")
    granted(kind, right)
    # Whatever access alone allows, anybody may.
    expected = {
        operation
        for operation in OPERATIONS.keys() - adapter.without
        if suffices(kind, right, operation) or suffices("realm", "access", operation)
    }

    with adapter.signed_in(realm, USER, PASSWORD) as caller:
        allowed = {
            operation
            for operation in sorted(OPERATIONS.keys() - adapter.without)
            if is_allowed(caller, operation)
        }

    assert allowed == expected


@pytest.mark.spec("A3")
def test_connections_need_the_right_to_access_the_realm(
    realm: penstock.Realm, adapter: Adapter, granted: Callable[[str, str], None]
) -> None:
    granted("channel", "full")

    with (
        pytest.raises(AccessDenied, match="'access' on the realm"),
        adapter.signed_in(realm, USER, PASSWORD) as caller,
    ):
        caller.try_("session.open")


def test_every_route_is_in_the_matrix() -> None:
    matched = set()
    for method, path, _ in [request for requests in ASKED.values() for request in requests]:
        match = TABLE.find("GET" if method == "HEAD" else method, path.partition("?")[0])
        if not path.startswith("/"):
            assert isinstance(match, RouteMatch), path
            matched.add((match.route.method, match.route.path))

    routes = {(route.method, route.path) for route in TABLE.routes if not route.is_open}
    assert matched == routes - FILTERED
