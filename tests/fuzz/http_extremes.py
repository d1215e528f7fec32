"""Well-formed HTTP requests with extreme values: one at a time for each part of the path, each
parameter and each field of a body of every route.

They are made from the table of routes and the types of its requests, with the values of
``values.py``. A value that a type does not allow must be refused, and the refusal must name its
field.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import inspect
from structlog.testing import capture_logs

from penstock_server.frontends.http.accepting import ARROW, FORM, NDJSON
from penstock_server.frontends.http.app import OPEN_BYTES_MAX
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import TAR, Content, Events, Route, Upload, form_of
from penstock_server.frontends.http.server import HttpConnection
from penstock_server.frontends.http.shapes import NewEvent, NewEvents
from tests.fuzz import columns_extremes
from tests.fuzz.connections import Wire
from tests.fuzz.http import END_S, HttpServed, request
from tests.fuzz.values import JSON, TEXTS, structs_of, usual_of, values_of

PATHS: Final = {"channel": "a", "queue": "q", "durable": "d", "event_id": "0"}
"""Existing objects; other parts of a path name nothing that exists."""
PATH_CHARACTERS_MAX: Final = 1_024
PIECE_BYTES: Final = 64 << 10
TURNS: Final = 50
PATIENCE_S: Final = 0.05
"""Wait for an answer that may come late, such as an event."""
NAMES: Final = {"source": "a", "destination": "q"}
"""Fields that name existing objects."""
_numbers: Final = count()
"""Makes each new name unique."""


class Case(NamedTuple):
    what: str
    data: bytes
    """All bytes of the request."""
    refused: str = ""
    """Text that the refusal must contain, because the value is beyond a bound; empty if the value
    may be accepted."""


class Answer(NamedTuple):
    status: int
    """0: no answer yet."""
    reason: str
    """Error text of a refusal."""


def routes() -> dict[str, Route]:
    return {route.name: route for route in TABLE.routes}


def cases(name: str) -> Iterator[Case]:
    """Yield requests of one route: with ordinary values, and with one extreme value."""
    route = routes()[name]
    usual = dict.fromkeys(_parts(route), "1") | PATHS
    body, kind = _usual_body(route)
    yield Case("as usual", _request(route, usual, body, kind=kind))
    for part in _parts(route):
        for text in filter(None, TEXTS):
            path = {**usual, part: text}
            refused = "" if len(text) <= PATH_CHARACTERS_MAX else "anything"
            yield Case(f"{part} of the path", _request(route, path, body, kind=kind), refused)
    yield from _parameters(route, usual, body, kind=kind)
    yield from _bodies(route, usual)


def _parts(route: Route) -> list[str]:
    return re.findall(r"{(\w+)}", route.path)


def _request(
    route: Route,
    path: dict[str, str],
    body: bytes,
    kind: str,
    query: Mapping[str, str] | None = None,
) -> bytes:
    """Return a request with the required parameters of its query and those in ``query``."""
    where = route.path
    for part in _parts(route):
        where = where.replace(f"{{{part}}}", quote(path[part], safe=""))
    encoded_query = urlencode({**_required(route), **(query or {})})
    return request(
        f"{route.method} {where}{'?' if encoded_query else ''}{encoded_query}", body, kind
    )


def _required(route: Route) -> dict[str, str]:
    """Return the required parameters of a route's query."""
    fields = _fields_of(TABLE.signatures[route].query)
    return {field.encode_name: _plain(usual_of(field)) for field in fields if field.required}


def _fields_of(kind: Any) -> Sequence[inspect.Field]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    return struct.fields


def _parameters(route: Route, usual: dict[str, str], body: bytes, kind: str) -> Iterator[Case]:
    query_type = TABLE.signatures[route].query
    for field in _fields_of(query_type):
        for value in values_of(field.type, JSON):
            if value is None:
                continue
            text = bytes(value).decode() if isinstance(value, msgspec.Raw) else _plain(value)
            extreme = {field.encode_name: text}
            is_long = len(quote(text)) > PIECE_BYTES
            is_beyond = _is_invalid(query_type, {**_required(route), **extreme})
            refused = "anything" if is_long else field.encode_name if is_beyond else ""
            sent = _request(route, usual, body, kind=kind, query=extreme)
            yield Case(f"{field.encode_name} of the query", sent, refused)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_invalid(kind: Any, query: dict[str, str]) -> bool:
    """Return whether a query is invalid for its type."""
    try:
        msgspec.convert(query, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return True
    return False


def _usual_body(route: Route) -> tuple[bytes, str]:
    body_type = TABLE.signatures[route].body
    if body_type is None:
        return b"", "application/json"
    if body_type is Upload:
        return b"x" * 600, TAR
    if body_type is Content:
        return b'{"text": "x"}', NDJSON
    if form_of(body_type) == FORM:
        usual = {field.encode_name: _plain(usual_of(field)) for field in _fields_of(body_type)}
        return urlencode(usual).encode(), FORM
    struct = inspect.type_info(body_type)
    assert isinstance(struct, inspect.StructType)
    return _encoded(next(structs_of(struct, JSON))[1]), "application/json"


def _bodies(route: Route, usual: dict[str, str]) -> Iterator[Case]:
    body_type = TABLE.signatures[route].body
    if body_type in (None, Upload):
        for data in (b"[" * 100_000, b"\x00" * 1_024, b'{"a": 1}'):
            kind = TAR if body_type is Upload else "application/json"
            yield Case("the body", _request(route, usual, data, kind=kind), "anything")
        return
    if form_of(body_type) == FORM:
        yield from _forms(route, usual)
        return
    for event_type in (NewEvent, NewEvents) if body_type is Content else (body_type,):
        struct = inspect.type_info(event_type)
        assert isinstance(struct, inspect.StructType)
        for field, value in structs_of(struct, JSON):
            if event_type is NewEvents and field == "events" and not value["events"]:
                continue  # the body is a single event then, without this field
            data = _encoded(value)
            refused = (
                "" if _is_valid(data, event_type) else field if _is_valid(data, Any) else "anything"
            )
            if route.is_open and len(data) > OPEN_BYTES_MAX:
                refused = "anything"
            yield Case(
                f"{field} of {event_type.__name__}",
                _request(route, usual, data, kind="application/json"),
                refused,
            )
            if event_type is NewEvent:
                what = f"{field} of a line"
                yield Case(what, _request(route, usual, data, kind=NDJSON))
    if body_type is Content:
        yield from _streams(route, usual)


def _forms(route: Route, usual: dict[str, str]) -> Iterator[Case]:
    """Yield forms with one extreme field. None of them names a user and a password."""
    for field in _fields_of(TABLE.signatures[route].body):
        for value in values_of(field.type, JSON):
            if value is None:
                continue
            text = bytes(value).decode() if isinstance(value, msgspec.Raw) else _plain(value)
            data = urlencode({field.encode_name: text}).encode()
            sent = _request(route, usual, data, kind=FORM)
            yield Case(f"{field.encode_name} of the form", sent, "anything")


def _streams(route: Route, usual: dict[str, str]) -> Iterator[Case]:
    """Yield bodies of Arrow."""
    for data in (b"", b"x" * (1 << 20), b"\xff" * 64):
        yield Case("Arrow", _request(route, usual, data, kind=ARROW), "anything")
    for what, batch in columns_extremes.batches():
        data = columns_extremes.stream(batch)
        yield Case(f"Arrow: {what}", _request(route, usual, data, kind=ARROW))


def _is_valid(data: bytes, kind: Any) -> bool:
    """Return whether a body is valid for its type."""
    try:
        msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


LEAST = {"lease_ms": 100}
"""Fields that need more than the usual 1."""


def _encoded(value: Any) -> bytes:
    if isinstance(value, dict):
        replacements = {**NAMES, "name": f"n{next(_numbers)}"}
        value = {
            name: replacements.get(name, v) if v == "orders" else v for name, v in value.items()
        }
        value = {name: LEAST[name] if v == 1 and name in LEAST else v for name, v in value.items()}
    return msgspec.json.encode(value)


# --- the exchange ----------------------------------------------------------------------


class HttpExtremes(HttpServed):
    """A realm with the objects of the requests, and a client."""

    def exchange(self, case: Case) -> Answer:
        """Return the answer to a request. Raises ``AssertionError`` for an unforeseen error."""
        if not self._inputs_left:
            self.loop.run_until_complete(self.restart())
            self._inputs_left = self._inputs_a_realm
        self._inputs_left -= 1
        answer: Answer = self.loop.run_until_complete(self._exchange(case))
        for task in self._tasks:
            assert not task.done(), f"{case.what}: the realm has ended: {task}"
        return answer

    async def _exchange(self, case: Case) -> Answer:
        with capture_logs() as logged:
            answer = await self._answer_to(case.data, PATIENCE_S if not case.refused else END_S)
        broken = [line for line in logged if line["log_level"] in ("error", "critical")]
        assert not broken, f"{case.what}: an unforeseen error: {broken}"
        return answer_of(answer)

    async def _answer_to(self, data: bytes, patience_s: float) -> bytes:
        peer, out = HttpConnection(self._http), Wire()
        peer.connection_made(out)
        for start in range(0, len(data), PIECE_BYTES):
            if not out.is_closing():
                peer.data_received(data[start : start + PIECE_BYTES])
                await asyncio.sleep(0)
        for _ in range(TURNS):
            if out.written:
                break
            await asyncio.sleep(0)
        tasks = set(self._http.uvicorn.tasks)
        if tasks and not out.written:
            await asyncio.wait(tasks, timeout=patience_s)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        peer.connection_lost(None)
        if tasks := set(self._http.uvicorn.tasks):
            _, unfinished = await asyncio.wait(tasks, timeout=END_S)
            assert not unfinished, f"a request continues after the loss of its client: {unfinished}"
        return bytes(out.written)


def answer_of(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return Answer(0, "")
    status = int(head.split(b" ", 2)[1])
    reason = ""
    if status >= 400 and body.startswith(b"{"):
        document = json.loads(body)
        # The errors of OAuth 2.0 have another form.
        error = document["error"]
        reason = str(document["error_description"] if isinstance(error, str) else error["message"])
    return Answer(status, reason)


def check(case: Case, answer: Answer) -> None:
    """Raise ``AssertionError`` if the answer is missing or unclear."""
    shown = f"{case.what}: {answer}"
    assert answer.status < 500 or answer.status in (503, 507), shown
    if case.refused:
        assert 400 <= answer.status < 500, shown
        assert case.refused == "anything" or case.refused in answer.reason, shown


def is_stream(name: str) -> bool:
    """Return whether the answer of a route has no end."""
    return TABLE.signatures[routes()[name]].answer is Events


@lru_cache
def served() -> HttpExtremes:
    import atexit

    server = HttpExtremes(100)
    atexit.register(server.close)
    return server
