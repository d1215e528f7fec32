"""A request by HTTP: it is answered with the reply."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web

QUERY = "?timeout=30"


@pytest.mark.spec("R1", "R3")
@pytest.mark.parametrize("kind", ["channels", "queues"])
def test_a_request_is_answered_with_its_reply(
    web: Web, session: penstock.Session, kind: str
) -> None:
    taking = _taking(session, kind)
    with ThreadPoolExecutor(1) as pool:
        body = {"data": "EUR", "properties": {"n": 1}}
        pending_reply = pool.submit(web.send, "POST", f"{kind}/rates/requests" + QUERY, body=body)
        request = taking()
        assert (request.data, request.properties) == (b"EUR", {"n": 1})
        request.reply(b"1.25", properties={"valid": True})
        reply = pending_reply.result(30.0)

    assert (reply["data"], reply["properties"]) == ("1.25", {"valid": True})
    assert reply["headers"]["correlation_id"] == request.headers["correlation_id"]
    assert request.headers["reply_to"] not in session.queues.list()


def _taking(session: penstock.Session, kind: str) -> Callable[[], penstock.ReceivedEvent]:
    """A store of this kind, and how to take a request from it."""
    if kind == "channels":
        durable = session.channels.create("rates").durables.create("team")
        return lambda: durable.fetch(1, 30.0)[0]
    reader = session.queues.create("rates").reader()
    return lambda: reader.fetch(1, 30.0)[0]


@pytest.mark.spec("R1")
def test_a_request_without_a_reply_is_504(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")

    refused = web.ask("POST", "queues/jobs/requests", {"data": "a"}, timeout=0)

    assert (refused.status, refused.code) == (504, "no-reply")
    assert session.queues.list() == ["jobs"]
    late = jobs.pop(30.0)
    assert late is not None
    with pytest.raises(penstock.NameDoesNotExist):
        late.reply(b"too late")


def test_a_request_sets_some_headers_itself(web: Web, session: penstock.Session) -> None:
    session.queues.create("jobs")
    for body, expected_error in (
        ({"headers": {"reply_to": "mine"}}, "sets the header reply_to of a request"),
        ({"deliver_at": 1}, "cannot be scheduled"),
    ):
        refused = web.ask("POST", "queues/jobs/requests", body)
        assert refused.code == "invalid-argument"
        assert expected_error in refused.document["error"]["message"]
    assert session.queues.get("jobs").info().events == 0
