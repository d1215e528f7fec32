"""HTTP at a node that stands by: its health, and where the realm is served."""

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
"""Most bytes of a request's first line and headers."""
_REASONS: Final = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request"}
_LOOKS: Final = ("/health", "/ready")


class StandbyHttpConnection(StandbyProtocol, asyncio.Protocol):
    """Answers one request and ends, so that the next one may find the realm served here."""

    def __init__(
        self,
        arrivals: Arrivals,
        is_ready: Callable[[], bool],
        unfit: Callable[[], str] = str,
        incidents: Callable[[], list[Incident]] = list,
    ) -> None:
        """``is_ready`` says whether the node relays requests to the owner, ``unfit`` why the node
        could not take the realm over, ``incidents`` what its background tasks could not do."""
        super().__init__(arrivals)
        self._is_ready = is_ready
        self._unfit = unfit
        self._incidents = incidents
        self._head = b""

    def data_received(self, data: bytes) -> None:
        if self._has_answered or self._transport is None:
            return
        self._head += data
        if b"\r\n\r\n" not in self._head and len(self._head) < HEAD_BYTES_MAX:
            return
        self._has_answered = True
        part(self._transport, self._answer(self._arrivals.owner()))

    def eof_received(self) -> bool:
        return False

    def _answer(self, owner: ServingNode | None) -> bytes:
        """The whole answer to a request."""
        method, _, rest = self._head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return _response(400, _error(InvalidArgument("this is not a request of HTTP/1.1")))
        is_head, path = method == "HEAD", target.partition("?")[0]
        if path in _LOOKS:
            return self._look(path, owner, is_head=is_head)
        error = self._arrivals.refusal("http")
        url = "" if owner is None else owner.url("http")
        is_page = not path.startswith(f"{BASE}/") and path != "/metrics"
        if url and is_page and method in ("GET", "HEAD"):
            return _response(307, _error(error), f"location: {url}{target}", is_head=is_head)
        more = "retry-after: 1"
        return _response(status_of(error), _error(error), more, is_head=is_head)

    def _look(self, path: str, owner: ServingNode | None, *, is_head: bool) -> bytes:
        """How this node is: well if it knows who serves, ready if it relays to that one."""
        is_lost = owner is None and not self._arrivals.has_quorum()
        told = StandbyHealth(
            status="no-quorum" if is_lost else "standing-by",
            owner="" if owner is None else owner.name,
            owner_url="" if owner is None else owner.url("http"),
            unfit=self._unfit(),
            incidents=self._incidents()[:INCIDENTS_SHOWN_MAX],
        )
        is_good = owner is not None and (path == "/health" or self._is_ready())
        return _response(200 if is_good else 503, msgspec.json.encode(told), is_head=is_head)


def wants_relay(data: bytes) -> bool | None:
    """Whether a connection that begins with this request is relayed to the owner: all but those
    that ask how this node is."""
    line, is_whole, _ = data.partition(b"\r\n")
    if not is_whole:
        return None if len(data) < HEAD_BYTES_MAX else False
    _, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    return version.startswith("HTTP/1.") and target.partition("?")[0] not in _LOOKS


def _error(error: PenstockError) -> bytes:
    detail = ErrorDetail(code=error.code, message=str(error), retryable=error.retryable)
    return msgspec.json.encode(ErrorAnswer(error=detail))


def _response(status: int, body: bytes, *more: str, is_head: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Service Unavailable')}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *more,
    ]
    head = "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
    return head if is_head else head + body
