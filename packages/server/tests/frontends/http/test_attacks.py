"""Attacks over HTTP by pages, strangers and users without rights: all are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import parse_headers

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web
from packages.server.tests.frontends.http.known import ANN, Known
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AuthenticationFailed, InvalidArgument
from penstock_server.frontends.http.access import Guard
from tests.loops import on_a_loop


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.01,
    ) as running:
        yield running


def grant(admin: Known, kind: str, name: str, *rights: str, subject: str = "ann@*") -> None:
    entry = {"kind": kind, "name": name, "subject": subject, "rights": rights}
    admin.send("POST", "acl/grant", entry)


def signed_in(web: Web, user: str, password: str) -> dict[str, str]:
    """Return the headers of a console that has logged in."""
    opened = web.ask("POST", "login", {"user": user, "password": password})
    cookie = opened.headers["set-cookie"].partition(";")[0]
    return {"cookie": cookie, "x-csrf-token": opened.document["csrf"]}


@pytest.mark.spec("A4")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_without_authentication_http_stays_on_this_machine(host: str) -> None:
    with penstock.Realm() as open_realm, pytest.raises(InvalidArgument, match="cannot listen"):
        open_realm.listen_http(host)


@pytest.mark.spec("A3")
@pytest.mark.parametrize("act", ["logout", "password"])
def test_a_view_ends_with_the_session_it_was_opened_in(
    web: Web, admin: Known, ann: Known, act: str
) -> None:
    admin.send("POST", "channels", {"name": "orders"})
    grant(admin, "channel", "orders", "subscribe")
    own_headers = signed_in(web, "ann", ANN)

    with web.watching("channels/orders/live", headers=own_headers) as events:
        if act == "logout":
            assert web.ask("POST", "logout", headers=own_headers).status == 200
        else:
            admin.send("POST", "users/ann/password", {"password": "quite another"})
        [(name, why)] = list(events)

    assert (name, why["code"]) == ("end", "authentication-failed")


@pytest.mark.spec("A4")
def test_a_view_ends_with_the_token_it_was_opened_with(realm: penstock.Realm) -> None:
    guard = Guard(realm.access)
    reader = Principal("admin", "127.0.0.1", proof="token", until_us=1_000)

    guard.check_still(reader, {"authorization": "Bearer x"}, 1_000)
    with pytest.raises(AuthenticationFailed, match="expired"):
        guard.check_still(reader, {"authorization": "Bearer x"}, 1_001)


@pytest.mark.spec("A3")
def test_a_refusal_does_not_tell_whether_there_is_such_a_name(admin: Known, ann: Known) -> None:
    admin.send("POST", "channels", {"name": "secret"})
    admin.send("POST", "queues", {"name": "hidden"})
    admin.send("POST", "channels", {"name": "dead"})
    grant(admin, "realm", "", "access", "realm")
    grant(admin, "channel", "dead", "purge", "subscribe", "publish")

    asks: tuple[Callable[[str], Reply], ...] = (
        lambda name: ann.ask("POST", "redrive", {"source": name}),
        lambda name: ann.ask("POST", "redrive", {"source": "dead", "destination": name}),
        lambda name: ann.ask("POST", "joins", {"source": name, "destination": "dead"}),
        lambda name: ann.ask("POST", "joins", {"source": "dead", "destination": name}),
        lambda name: ann.ask("GET", "schedule", channel=name),
        lambda name: ann.ask("GET", f"channels/{name}"),
        lambda name: ann.ask("GET", f"queues/{name}"),
    )
    for ask in asks:
        answers = [ask(name) for name in ("secret", "hidden", "nowhere")]
        assert {(answer.status, answer.code) for answer in answers} == {(403, "access-denied")}
        reasons = [answer.reason.split(";")[0].split() for answer in answers]
        assert reasons[0][:-1] == reasons[1][:-1] == reasons[2][:-1]


def test_the_audit_log_has_created_and_refused_joins(admin: Known, ann: Known) -> None:
    for name in ("orders", "copy"):
        admin.send("POST", "channels", {"name": name})
    joined = {"source": "orders", "destination": "copy"}
    assert ann.ask("POST", "joins", joined).status == 403
    made = admin.send("POST", "joins", joined)
    admin.send("DELETE", f"joins/{made['id']}")

    newest = admin.get("audit", limit=2)["items"]
    newest += admin.get("audit", kind="refusals", limit=1)["items"]

    assert [(entry["operation"], entry["target"], entry["outcome"]) for entry in newest] == [
        ("join.delete", "orders -> copy", "done"),
        ("join.create", "orders -> copy", "done"),
        ("join.create", "orders -> copy", "access-denied"),
    ]


def next_answer(peer: socket.socket) -> tuple[bytes, bytes]:
    """The status line and the whole body of the next answer. Unlike ``HTTPResponse`` this takes a
    ``100 Continue`` for an answer, because a refusal must not come after one."""
    with peer.makefile("rb") as stream:
        status = stream.readline()
        length = parse_headers(stream).get("content-length", "0")
        return status, stream.read(int(length))


def answer_before_the_body(web: Known, head: str) -> tuple[bytes, bytes]:
    """The answer to a request whose body is never sent."""
    with web.raw() as peer:
        own_headers = f"authorization: {web.own_headers['authorization']}\r\nhost: localhost\r\n"
        peer.sendall(f"{head}\r\n{own_headers}content-type: application/json\r\n\r\n".encode())
        return next_answer(peer)


@pytest.mark.spec("A3")
@pytest.mark.parametrize(
    "route",
    [
        "POST channels",
        "POST channels/orders/events",
        "POST channels/orders/purge",
        "PATCH channels/orders",
        "POST imports",
        "POST users",
        "PATCH realm",
        "POST joins",
    ],
)
@pytest.mark.parametrize(
    "length",
    ["content-length: 20000000", "content-length: 40", "transfer-encoding: chunked"],
    ids=["long", "short", "chunked"],
)
def test_the_right_is_checked_before_the_body_is_read(
    admin: Known, ann: Known, route: str, length: str
) -> None:
    admin.send("POST", "channels", {"name": "orders"})
    method, path = route.split()

    for expect in ("", "\r\nexpect: 100-continue") if "40" not in length else ("",):
        head = f"{method} /api/v1/{path} HTTP/1.1\r\n{length}{expect}"
        status, body = answer_before_the_body(ann, head)

        assert status.startswith(b"HTTP/1.1 403"), (status, body)
        assert b"access-denied" in body


def test_a_refused_request_that_was_sent_whole_is_followed_by_others(
    admin: Known, ann: Known
) -> None:
    body = b'{"name": "x"}'
    with ann.raw() as peer:
        own_headers = f"authorization: {ann.own_headers['authorization']}\r\nhost: localhost\r\n"
        kind = "content-type: application/json\r\n"
        for size in (len(body), 100_000):
            head = (
                f"POST /api/v1/channels HTTP/1.1\r\n{own_headers}{kind}"
                f"content-length: {size}\r\n\r\n"
            )
            peer.sendall(head.encode() + body + b" " * (size - len(body)))
            assert next_answer(peer)[0].startswith(b"HTTP/1.1 403")
        peer.sendall(f"GET /api/v1/me HTTP/1.1\r\n{own_headers}\r\n".encode())
        assert next_answer(peer)[0].startswith(b"HTTP/1.1 200")

    newest = admin.get("audit", kind="refusals", limit=2)["items"]
    assert [entry["target"] for entry in newest] == ["", "x"]  # a long body is not read for it


@pytest.fixture
def optional() -> Iterator[penstock.Realm]:
    """A realm whose strangers may read ``open``."""
    with (
        penstock.Realm(
            access__mode="optional", access__password_rounds=4_096, http__hosts="Shop.example, b"
        ) as running,
        running.connect() as session,
    ):
        session.channels.create("open")
        session.access.grant("*@*", "access")
        session.access.grant("*@*", "subscribe", channel="open")
        session.access.create_user("ann", ANN)
        yield running


@pytest.mark.spec("A4")
def test_a_strange_name_leads_no_stranger_in(optional: penstock.Realm) -> None:
    web = Web(optional.listen_http())
    own_headers = {"authorization": Known(web.url, "ann", ANN).own_headers["authorization"]}
    for host in ("evil.example", "evil.example:9080", "localhost.evil.example", "10.0.0.1.evil"):
        for path in ("channels/open/events", "me", "realm"):
            reply = web.ask("GET", path, headers={"host": host})
            assert (reply.status, reply.code) == (401, "authentication-failed")
            assert "http.hosts" in reply.reason
        assert web.ask("GET", "/metrics", headers={"host": host}).status == 401
        named = {**own_headers, "host": host}
        assert web.ask("GET", "channels/open/events", headers=named).status == 200
        signed = web.ask("POST", "login", {"user": "ann", "password": ANN}, headers={"host": host})
        cookie = {"cookie": signed.headers["set-cookie"].partition(";")[0], "host": host}
        assert web.ask("GET", "me", headers=cookie).document["user"] == "ann"


@pytest.mark.spec("A4")
@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9080", "10.1.2.3", "[::1]:1", "shop.example", "B:80"]
)
def test_known_names_and_addresses_lead_strangers_in(optional: penstock.Realm, host: str) -> None:
    web = Web(optional.listen_http())

    assert web.ask("GET", "channels/open/events", headers={"host": host}).status == 200


@pytest.mark.spec("A4")
def test_over_tls_the_certificate_proves_the_name(optional: penstock.Realm) -> None:
    guard = Guard(optional.access, is_secure=True)
    principal = guard.identify({"host": "any.example"}, "10.0.0.6", None, changes=False)

    assert asyncio.run(principal).user == "anonymous"


def test_realms_on_two_ports_do_not_share_a_session(web: Web, admin: Known, ann: Known) -> None:
    login = {"user": "ann", "password": ANN}
    first, second = (
        web.ask("POST", "login", login, headers={"host": f"localhost:{port}"})
        for port in (9080, 9081)
    )
    cookies = [entry.headers["set-cookie"].partition(";")[0] for entry in (first, second)]

    assert [entry.partition("=")[0] for entry in cookies] == [
        "penstock_session_9080",
        "penstock_session_9081",
    ]
    both_cookies = {"cookie": "; ".join(cookies), "host": "localhost:9081"}
    assert web.ask("GET", "me", headers=both_cookies).document["csrf"] == second.document["csrf"]
    only = {"cookie": cookies[0], "host": "localhost:9081"}
    assert web.ask("GET", "me", headers=only).status == 401


def test_a_stranger_may_not_send_much(web: Web) -> None:
    reply = web.ask("POST", "login", {"user": "ann", "password": "x" * 70_000})

    assert reply.status == 413


@on_a_loop
async def test_rights_of_a_host_do_not_travel_with_a_cookie(
    realm: penstock.Realm, ann: Known
) -> None:
    guard = Guard(realm.access)
    login = await guard.access.logins.open(Principal("ann", "10.0.0.5", proof="password"))
    headers = {"cookie": f"penstock_session={login.id}"}
    principal = await guard.identify(headers, "10.0.0.6", None, changes=False)

    assert principal.name == "ann@10.0.0.6"


@pytest.mark.spec("A3")
def test_a_waiting_client_gets_no_event_after_losing_the_right(
    realm: penstock.Realm, admin: Known, ann: Known
) -> None:
    admin.send("POST", "queues", {"name": "jobs"})
    grant(admin, "queue", "jobs", "pop")
    with ThreadPoolExecutor(1) as pool, realm.connect() as session:
        popped = pool.submit(ann.ask, "POST", "queues/jobs/pop", body={"timeout": 30})
        waits = b'penstock_durable_clients{channel="jobs",durable=""} 1.0'
        while waits not in admin.ask("GET", "/metrics").data:
            assert not popped.done()
        empty_entry = {"kind": "queue", "name": "jobs", "subject": "ann@*", "rights": []}
        admin.send("POST", "acl/revoke", empty_entry)
        session.queues.get("jobs").push(b"secret")
        reply = popped.result(timeout=30)

    assert reply.status == 403
    assert b"secret" not in reply.data
    assert len(admin.get("queues/jobs/events")["items"]) == 1
