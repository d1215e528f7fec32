"""A small HTTP client for tests: each call sends one request and returns its answer."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

TIMEOUT_S = 30.0


class Reply:
    """A complete answer."""

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.data)

    @property
    def code(self) -> str:
        """The error code in the document."""
        return str(self.document["error"]["code"])

    @property
    def reason(self) -> str:
        return str(self.document["error"]["message"])


class Web:
    """Sends requests to one realm."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._tls = tls
        self.address = urlsplit(url).hostname or "", urlsplit(url).port or 0

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(*self.address, timeout=TIMEOUT_S, context=self._tls)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Reply:
        """Send a request. ``path`` is below the API's base, or absolute if it begins with a slash.
        A ``body`` that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            sent.setdefault("content-type", "application/json")
        where = path if path.startswith("/") else f"/api/v1/{path}"
        if query:
            where = f"{where}?{urlencode(query)}"
        connection = self._connection()
        try:
            connection.request(method, where, body, sent)
            answer = connection.getresponse()
            headers_by_name = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers_by_name, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Any:
        """Return the document at a path. Any status except success fails the test."""
        reply = self.ask("GET", path, **query)
        assert reply.status == 200, reply.data
        return reply.document

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Send a change, and return its answer. Any status except success fails the test."""
        reply = self.ask(method, path, body)
        assert reply.status in (200, 201), reply.data
        return reply.document

    @contextmanager
    def watching(
        self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Iterator[Iterator[tuple[str, Any]]]:
        """Yield the events of a stream as they arrive."""
        connection = self._connection()
        try:
            connection.request(
                "GET", f"/api/v1/{path}?{urlencode(query)}", headers=dict(headers or {})
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type") == "text/event-stream"
            yield _events(answer)
        finally:
            connection.close()

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """Return a connection for any bytes."""
        with socket.create_connection(self.address, timeout=TIMEOUT_S) as opened:
            yield opened


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := answer.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, msgspec.json.decode(value)


def part(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")
