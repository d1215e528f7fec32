"""The API's document: it is OpenAPI 3.1, it tells every route, and what the routes do is what it
says, whatever is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_origin
from urllib.parse import urlencode

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.vocabulary.errors import error_classes
from penstock_server.frontends.http.accepting import ARROW, NDJSON
from penstock_server.frontends.http.consuming_shapes import FetchedAnswer
from penstock_server.frontends.http.openapi import document
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import BASE, TAR, Payload
from penstock_server.frontends.http.server import HEAD_BYTES_MAX
from penstock_server.frontends.http.statuses import STATUSES

CONFORMANCE = [content_type_conformance, response_schema_conformance, status_code_conformance]
DOCUMENT = document(TABLE, "0")
few = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
"""A few requests for each operation, the same each time."""
STREAMS = frozenset(("/channels/{channel}/live", "/live", "/queues/{queue}/live", "/rates"))
ACCESS = frozenset(("users", "groups", "acl", "audit", "login", "logout", "me"))


def test_every_route_is_described_once() -> None:
    described = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
    }

    assert described == {(route.method, f"{BASE}/{route.path}") for route in TABLE.routes}
    assert len(described) == len(TABLE.routes)


def parameters(name: str) -> list[dict[str, Any]]:
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    return [
        parameter["schema"]
        for operation in operations
        for parameter in operation["parameters"]
        if parameter["name"] == name
    ]


@pytest.mark.parametrize(
    ("parameter", "good", "bad"),
    [
        ("channel", ["a", "shop/Süd", "a b", "日本", "$x#1"], ["", " a", "a ", "a\nb", "\0"]),
        ("event_id", ["0", "9223372036854775806"], ["", "-1", "1.5", "one"]),
        (
            "start",
            ["earliest", "latest", "42", "2026-05-04T12:00:00Z", "2026-05-04", "20260504T12"],
            ["", "soon", "-1", "4.5"],
        ),
    ],
)
def test_the_document_has_the_schema_of_parameters(
    parameter: str, good: list[str], bad: list[str]
) -> None:
    patterns = {
        operation["pattern"] for operation in parameters(parameter) if operation["type"] == "string"
    }

    (pattern,) = patterns
    assert all(re.search(pattern, text) for text in good)
    assert not any(re.search(pattern, text) for text in bad)


def test_a_stream_is_no_string() -> None:
    answers = DOCUMENT["paths"][f"{BASE}/rates"]["get"]["responses"]["200"]

    assert answers["content"] == {"text/event-stream": {}}


def test_every_operation_has_a_name_of_its_own_and_a_sentence() -> None:
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]

    assert len(set(names)) == len(names)
    assert all(operation["summary"].endswith((".", ").")) for operation in operations)


def test_every_example_matches_its_schema() -> None:
    shown = [route for route in TABLE.routes if route.examples is not None]

    assert shown
    for route in shown:
        examples, signature = route.examples, TABLE.signatures[route]
        assert examples is not None
        msgspec.convert(examples.body, signature.body)
        is_negotiated = get_origin(signature.answer) is Payload
        answer = FetchedAnswer if is_negotiated else signature.answer
        msgspec.convert(examples.answer, answer)


def test_every_error_code_has_a_status() -> None:
    later = {"access-denied", "authentication-failed", "limit-reached"}

    assert set(error_classes()) - set(STATUSES) == set()
    assert set(STATUSES) - set(error_classes()) <= later


def test_the_document_is_served(web: Web) -> None:
    served = web.get("openapi.json")

    assert served["openapi"] == "3.1.0"
    assert served["paths"].keys() == DOCUMENT["paths"].keys()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("a")
        orders.publish_many([penstock.Event(b"x", properties={"n": n}) for n in range(3)])
        orders.durables.create("d", start="earliest")
        session.queues.create("q").push(b"x")
        yield realm.listen_http()


def _example_path(tree: Any) -> Any:
    """The document with names that lead somewhere, most of the time."""
    for path, operations in tree["paths"].items():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                example_names = {"channel": "a", "queue": "q", "durable": "d", "event_id": "1"}
                if parameter["in"] == "path" and parameter["name"] in example_names:
                    parameter["schema"]["examples"] = [example_names[parameter["name"]]]
        assert path.startswith(BASE)
    return tree


@schemathesis.serializer(NDJSON, ARROW, TAR)
def _as_it_is(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


schema = schemathesis.openapi.from_dict(_example_path(document(TABLE, "0")))
chosen = schema.exclude(path_regex=r"/(live|rates)$").exclude(
    path_regex=rf"^{BASE}/({'|'.join(sorted(ACCESS))})\b"
)


def _soon(timeout: Any) -> Any:
    """Return a shorter timeout in place of a valid one; an invalid one is returned unchanged."""
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        return timeout
    return 0.01 if 0 <= seconds <= 30 else timeout


@chosen.parametrize()
@few
def test_answers_match_the_document(case: schemathesis.Case[Any], url: str) -> None:
    if case.method == "DELETE" and case.path_parameters.get("channel") == "a":
        return  # the others look at it
    if len(urlencode(case.query)) > HEAD_BYTES_MAX // 2:
        return  # the connection ends before an answer (test_hostile.py)
    if isinstance(case.body, dict) and isinstance(wait_ms := case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(wait_ms, 10)  # no client publishes in the meantime
    if case.path.endswith("/requests"):
        case.query["timeout"] = _soon(case.query.get("timeout", 10.0))  # no client replies
    response = case.call(base_url=url, timeout=30)

    case.validate_response(response, checks=CONFORMANCE)
    assert response.status_code < 500 or response.json()["error"]["retryable"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[str, tuple[str, str]]]:
    """A realm that wants to know who asks, and its administrator."""
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
    ) as realm:
        yield realm.listen_http(), ("admin", realm.access.first_password)


about_access = schema.include(path_regex=rf"^{BASE}/({'|'.join(sorted(ACCESS))})\b")


@about_access.parametrize()
@few
def test_answers_about_access_match_the_document(
    case: schemathesis.Case[Any], guarded: tuple[str, tuple[str, str]]
) -> None:
    url, administrator = guarded
    if case.path_parameters.get("name") == "admin" or case.path.endswith("/me/password"):
        return  # the others ask as this one
    for asking in (administrator, None):
        response = case.call(base_url=url, timeout=30, auth=asking)

        case.validate_response(response, checks=CONFORMANCE)
        assert response.status_code < 500 or response.json()["error"]["retryable"]
