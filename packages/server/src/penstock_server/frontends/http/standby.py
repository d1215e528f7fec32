"""HTTP at a standby node: reports its health and redirects to the node that owns the realm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_server.frontends.http.health import INCIDENTS_SHOWN_MAX, StandbyHealth
from penstock_server.frontends.http.routing import BASE
from penstock_server.frontends.http.shapes import ErrorAnswer, ErrorDetail
from penstock_server.frontends.http.statuses import status_of
from penstock_server.frontends.shared.arrivals import Arrivals, StandbyProtocol
from penstock_server.frontends.shared.serving_node import ServingNode, part
from penstock_server.runtime.access.incidents import Incident

HEAD_BYTES_MAX: Final = 64 << 10
"""Maximum size in bytes of a request's first line and headers."""
_REASONS: Final = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request"}
_HEALTH_PATHS: Final = ("/health", "/ready")


class StandbyHttpConnection(StandbyProtocol, asyncio.Protocol):
    """Answers one request and closes. The client reconnects for the next request, and this node
    may own the realm by then."""

    def __init__(
        self,
        arrivals: Arrivals,
        is_ready: Callable[[], bool],
        unfit: Callable[[], str] = str,
        incidents: Callable[[], list[Incident]] = list,
    ) -> None:
        """``is_ready`` returns whether the node relays requests to the owner, ``unfit`` the reason
        why the node could not take over the realm, ``incidents`` failures of its background
        tasks."""
        super().__init__(arrivals)
        self._is_ready = is_ready
        self._unfit = unfit
        self._incidents = incidents
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if self._has_answered or self._transport is None:
            return
        self._head += data
        # An incomplete head of this size is also answered, so that it does not grow further.
        if b"\r\n\r\n" not in self._head and len(self._head) < HEAD_BYTES_MAX:
            return
        self._has_answered = True
        part(self._transport, self._answer(self._arrivals.owner()))

    def eof_received(self) -> bool:
        return False

    def _answer(self, owner: ServingNode | None) -> bytes:
        """Return the complete response to the request."""
        method, _, rest = self._head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return _response(400, _error(InvalidArgument("the request is not valid HTTP/1.1")))
        is_head, path = method == "HEAD", target.partition("?")[0]
        if path in _HEALTH_PATHS:
            return self._health(path, owner, is_head=is_head)
        error = self._arrivals.refusal("http")
        url = "" if owner is None else owner.url("http")
        is_page = not path.startswith(f"{BASE}/") and path != "/metrics"
        # A page of the console is redirected to the owner. Clients of the API get an error that
        # says when to try again.
        if url and is_page and method in ("GET", "HEAD"):
            return _response(307, _error(error), f"location: {url}{target}", is_head=is_head)
        return _response(status_of(error), _error(error), "retry-after: 1", is_head=is_head)

    def _health(self, path: str, owner: ServingNode | None, *, is_head: bool) -> bytes:
        """Return the health of this node: healthy if it knows the owner of the realm, ready if it
        relays to the owner."""
        is_lost = owner is None and not self._arrivals.has_quorum()
        health = StandbyHealth(
            status="no-quorum" if is_lost else "standing-by",
            owner="" if owner is None else owner.name,
            owner_url="" if owner is None else owner.url("http"),
            unfit=self._unfit(),
            incidents=self._incidents()[:INCIDENTS_SHOWN_MAX],
        )
        is_good = owner is not None and (path == "/health" or self._is_ready())
        return _response(200 if is_good else 503, msgspec.json.encode(health), is_head=is_head)


def wants_relay(data: bytes) -> bool | None:
    """Return whether a connection that begins with this request is relayed to the owner; None if
    more bytes are needed. All requests are relayed, except those for the health of this node."""
    line, line_end, _ = data.partition(b"\r\n")
    if not line_end:
        return None if len(data) < HEAD_BYTES_MAX else False
    _, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    return version.startswith("HTTP/1.") and target.partition("?")[0] not in _HEALTH_PATHS


def _error(error: PenstockError) -> bytes:
    detail = ErrorDetail(code=error.code, message=str(error), retryable=error.retryable)
    return msgspec.json.encode(ErrorAnswer(error=detail))


def _response(status: int, body: bytes, *headers: str, is_head: bool = False) -> bytes:
    """Return a complete HTTP response in JSON, without the body if ``is_head``."""
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Service Unavailable')}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *headers,
    ]
    head = "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
    return head if is_head else head + body
