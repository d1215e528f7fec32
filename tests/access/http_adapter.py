"""The adapter of the HTTP front end for the matrix of operations and rights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from packages.server.tests.frontends.http.asking import Web, part
from penstock_core.vocabulary import errors
from penstock_core.vocabulary.errors import PenstockError
from tests.access.matrix import CHANNEL, OTHER, PASSWORD, QUEUE, TOPICS, Caller, register

_C, _Q = f"channels/{part(CHANNEL)}", f"queues/{part(QUEUE)}"
_KEPT = f"{_C}/durables/kept"
_NONE = base64.urlsafe_b64encode(f'["{OTHER}","{QUEUE}"]'.encode()).decode().rstrip("=")
_BY_CODE = {
    error_class.code: error_class
    for error_class in vars(errors).values()
    if isinstance(error_class, type) and issubclass(error_class, PenstockError)
}

Asked = tuple[str, str, Any]


def _consuming(path: str) -> tuple[Asked, ...]:
    lease = f"{path}/leases/none"
    return (
        ("POST", f"{path}/fetch", {}),
        ("POST", f"{lease}/ack", {"all": True}),
        ("POST", f"{lease}/rollback", {"all": True}),
        ("POST", f"{lease}/reject", {"all": True, "reason": "no"}),
        ("POST", f"{lease}/extend", {"all": True, "lease_ms": 1_000}),
    )


_ICEBERG_CODES = {"403": "access-denied", "404": "name-does-not-exist"}
"""Error codes for the catalog, whose answers have only the HTTP status."""
ASKED: dict[str, tuple[Asked, ...]] = {
    "session.open": (("GET", "me", None),),
    "realm.describe": (
        ("GET", "realm", None),
        ("POST", "selectors/check", {"selector": "a = 1"}),
        ("GET", "mqtt", None),
        ("GET", "iceberg/v1/config", None),
        ("GET", "iceberg/v1/namespaces", None),
        ("GET", "iceberg/v1/namespaces/none", None),
    ),
    "realm.watch": (
        ("GET", "/metrics", None),
        ("GET", "pipelines", None),
        ("GET", "cluster", None),
        ("GET", "pipelines/none", None),
        ("HEAD", "rates", None),
        ("GET", "history", None),
    ),
    "realm.pause": (("PATCH", "realm", {"paused": False}),),
    "connection.list": (("GET", "connections", None),),
    "mqtt.sessions": (("GET", "mqtt/sessions", None),),
    "mqtt.session.end": (("DELETE", "mqtt/sessions?client_id=none", None),),
    "connection.end": (("DELETE", "connections/none", None),),
    "audit.read": (("GET", "audit", None),),
    "user.list": (("GET", "users", None),),
    "user.change": (
        ("DELETE", "users/nobody", None),
        ("POST", "users/nobody/password", {"password": PASSWORD}),
        ("POST", "users", {"name": "guard"}),
    ),
    "group.list": (("GET", "groups", None),),
    "group.change": (
        ("DELETE", "groups/nothing", None),
        ("PATCH", "groups/nothing", {"add": ["nobody"]}),
        ("POST", "groups", {"name": "*"}),
    ),
    "realm.acl.read": (("GET", "acl?kind=realm", None),),
    "realm.acl.change": (
        ("POST", "acl/revoke", {"kind": "realm", "subject": "nobody@*", "rights": []}),
        ("POST", "acl/grant", {"kind": "realm", "subject": "nobody", "rights": ["access"]}),
    ),
    "me.read": (("GET", "me", None),),
    "me.password": (("POST", "me/password", {"password": PASSWORD, "old": PASSWORD}),),
    "join.list": (("GET", "joins", None),),
    "join.create": (("POST", "joins", {"source": OTHER, "destination": OTHER}),),
    "join.delete": (("DELETE", f"joins/{_NONE}", None),),
    # Without the right to consume, nothing is delivered or settled: test_consuming_patterns.py.
    "channel.list": (
        ("GET", "channels", None),
        ("GET", "names", None),
        ("GET", "iceberg/v1/namespaces/channels/tables", None),
        *_consuming(f"durables/{part('matrix/*')}/unknown"),
    ),
    "pattern.list": (
        ("GET", "durables", None),
        ("GET", f"durables/{part('matrix/*')}/unknown", None),
    ),
    "pattern.create": (("POST", "durables", {"pattern": "nothing/*", "name": "kept"}),),
    "pattern.delete": (("DELETE", f"durables/{part('matrix/*')}/unknown", None),),
    "queue.list": (
        ("GET", "queues", None),
        ("GET", "iceberg/v1/namespaces/queues/tables", None),
    ),
    "channel.create": (("POST", "channels", {"name": CHANNEL}),),
    "queue.create": (("POST", "queues", {"name": QUEUE}),),
    "channel.describe": (("GET", _C, None),),
    "channel.columns": (("GET", f"{_C}/columns", None),),
    "queue.describe": (("GET", _Q, None),),
    "queue.columns": (("GET", f"{_Q}/columns", None),),
    "channel.edit": (("PATCH", _C, {"ttl": 0}),),
    "queue.edit": (("PATCH", _Q, {"ttl": 0}),),
    "channel.delete": (("DELETE", _C, None),),  # refused, because it is a dead event store
    "queue.delete": (("DELETE", _Q, None),),  # refused for the same reason
    "channel.import": (("POST", "imports", b""),),
    "channel.export": (("GET", f"{_C}/export", None),),
    "queue.export": (("GET", f"{_Q}/export", None),),
    "channel.maintain": (("POST", f"{_C}/maintain", None),),
    "queue.maintain": (("POST", f"{_Q}/maintain", None),),
    "channel.publish": (
        ("POST", f"{_C}/events", {"events": []}),
        ("POST", f"{_C}/requests?timeout=0", {"headers": {"reply_to": ""}}),
    ),
    "queue.push": (
        ("POST", f"{_Q}/events", {"events": []}),
        ("POST", f"{_Q}/requests?timeout=0", {"headers": {"reply_to": ""}}),
    ),
    "channel.subscribe": (
        ("GET", f"{_C}/events", None),
        ("GET", f"{_C}/events/1", None),
        ("HEAD", f"{_C}/live", None),
        ("GET", f"{_C}/dead", None),
        ("GET", f"{_C}/topics", None),
        ("GET", f"{_C}/retained", None),
        ("GET", f"{_C}/retained/1", None),
        ("GET", f"{_C}/storage", None),
        ("GET", f"iceberg/v1/namespaces/channels/tables/{part(CHANNEL)}", None),
        ("GET", f"{_C}/missing", None),
        ("GET", f"{_C}/state?key=EUR", None),
        ("POST", "selectors/check", {"selector": "a = 1", "channel": CHANNEL}),
    ),
    "queue.peek": (
        ("GET", f"{_Q}/delivery", None),
        ("GET", f"{_Q}/events", None),
        ("GET", f"{_Q}/events/1", None),
        ("HEAD", f"{_Q}/live", None),
        ("GET", f"{_Q}/dead", None),
        ("GET", f"{_Q}/storage", None),
        ("GET", f"iceberg/v1/namespaces/queues/tables/{part(QUEUE)}", None),
        ("GET", f"{_Q}/missing", None),
        ("POST", "selectors/check", {"selector": "a = 1", "channel": QUEUE}),
    ),
    "queue.pop": (("POST", f"{_Q}/pop", {"count": 1}), *_consuming(_Q)),
    "durable.attach": _consuming(f"{_C}/durables/kept"),
    "channel.purge": (
        ("POST", f"{_C}/purge", {"start": 0, "end": 0}),
        ("DELETE", f"{_C}/schedule/1", None),
        ("DELETE", f"{_C}/retained?filter=a", None),
    ),
    "queue.purge": (
        ("POST", f"{_Q}/purge", {"start": 0, "end": 0}),
        ("DELETE", f"{_Q}/schedule/1", None),
    ),
    "channel.redrive": (("POST", "redrive", {"source": CHANNEL}),),
    "queue.redrive": (("POST", "redrive", {"source": QUEUE}),),
    "channel.acl.read": (("GET", f"acl?kind=channel&name={part(CHANNEL)}", None),),
    "queue.acl.read": (("GET", f"acl?kind=queue&name={part(QUEUE)}", None),),
    "channel.acl.change": tuple(
        ("POST", f"acl/{what}", {"kind": "channel", "name": CHANNEL, "subject": who, "rights": []})
        for what, who in (("revoke", "nobody@*"), ("grant", "nobody"))
    ),
    "queue.acl.change": tuple(
        ("POST", f"acl/{what}", {"kind": "queue", "name": QUEUE, "subject": who, "rights": []})
        for what, who in (("revoke", "nobody@*"), ("grant", "nobody"))
    ),
    "topic.acl.read": (("GET", f"acl?kind=topic&name={part(TOPICS)}", None),),
    "topic.acl.change": tuple(
        ("POST", f"acl/{what}", {"kind": "topic", "name": TOPICS, "subject": who, "rights": []})
        for what, who in (("revoke", "nobody@*"), ("grant", "nobody"))
    ),
    "durable.list": (("GET", f"{_C}/durables", None),),
    "durable.describe": (("GET", _KEPT, None),),
    "durable.browse": (("GET", f"{_KEPT}/events", None),),
    "durable.create": (("POST", f"{_C}/durables", {"name": "kept", "type": "shared"}),),
    "durable.delete": (("DELETE", f"{_C}/durables/unknown", None),),
    "durable.purge": (("POST", f"{_KEPT}/purge", {"start": 0, "end": 0}),),
    "durable.unbind": (("POST", f"{_KEPT}/unbind", None),),
    "durable.seek": (("POST", f"{_KEPT}/seek", {"to": "latest"}),),
    "durable.delivery": (("GET", f"{_C}/delivery", None),),
    "durable.preview": (("GET", f"{_KEPT}/seek?to=earliest", None),),
}
"""All routes of each operation, with requests that do not change the realm."""


class HttpCaller:
    def __init__(self, web: Web, own: dict[str, str]) -> None:
        self._web = web
        self._own = own

    def try_(self, operation: str) -> None:
        """Try all routes of an operation: either all are refused, or none."""
        outcomes = {
            path: self._outcome(*request) for request in ASKED[operation] for path in request[1:2]
        }
        refused = [error for error in outcomes.values() if isinstance(error, errors.AccessDenied)]
        if refused and len(refused) < len(outcomes):
            raise AssertionError(f"{operation} is not refused everywhere: {outcomes}")
        for error in outcomes.values():
            if error is not None:
                raise error

    def _outcome(self, method: str, path: str, body: Any) -> PenstockError | None:
        kind = {"content-type": "application/x-tar"} if isinstance(body, bytes) else {}
        reply = self._web.ask(method, path, body, headers={**self._own, **kind})
        if reply.status < 400:
            return None
        if method == "HEAD":  # the answer has only the status
            return self._outcome("GET", path, body)
        code = _ICEBERG_CODES[reply.code] if path.startswith("iceberg/") else reply.code
        return _BY_CODE[code](reply.reason)


class Http:
    name = "http"
    without = frozenset(
        {
            # HTTP has no route for these, or they use the route of another operation.
            "realm.backup",
            "realm.reload",
            "transaction.describe",
            "channel.open",
            "queue.open",
            "queue.import",
        }
    )

    def __init__(self) -> None:
        self._urls: dict[penstock.Realm, str] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._urls:
            self._urls[realm] = realm.listen_http()
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        yield HttpCaller(Web(self._urls[realm]), {"authorization": f"Basic {secret}"})


register(Http)
