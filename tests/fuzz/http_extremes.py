"""Well-formed requests over HTTP whose values are extreme: each part of the path, each parameter
and each field of a body of every route, by itself.

They are made from the table of routes and the types its requests are read into, with the values of
``values.py``; what a type does not take has to be refused, and the field named.
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

from penstock_server.frontends.http.app import OPEN_BYTES_MAX
from penstock_server.frontends.http.publishing import ARROW, NDJSON
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import TAR, Content, Events, Route, Upload
from penstock_server.frontends.http.server import HttpConnection
from penstock_server.frontends.http.shapes import NewEvent, NewEvents
from tests.fuzz import columns_extremes
from tests.fuzz.connections import Wire
from tests.fuzz.http import END_S, HttpServed, request
from tests.fuzz.values import JSON, TEXTS, structs_of, usual_of, values_of

PATHS: Final = {"channel": "a", "queue": "q", "durable": "d", "event_id": "0"}
"""What there is; of other parts of a path there is nothing."""
PATH_CHARACTERS_MAX: Final = 1_024
PIECE_BYTES: Final = 64 << 10
TURNS: Final = 50
PATIENCE_S: Final = 0.05
"""How long to wait for an answer that may take its time, such as an event's."""
NAMES: Final = {"source": "a", "destination": "q"}
"""Fields that name what there is."""
_numbers: Final = count()
"""Each name for something new is another one."""


class Case(NamedTuple):
    what: str
    data: bytes
    """The whole request."""
    refused: str = ""
    """What the answer has to name, as its value is beyond a bound; empty: it may be taken."""


class Answer(NamedTuple):
    status: int
    """0: there was none yet."""
    reason: str
    """Why it was refused."""


def routes() -> dict[str, Route]:
    return {route.name: route for route in TABLE.routes}


def cases(name: str) -> Iterator[Case]:
    """Requests of one route: as usual, and with one value extreme."""
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
    """With what the query has to have, and what ``query`` says besides."""
    where = route.path
    for part in _parts(route):
        where = where.replace(f"{{{part}}}", quote(path[part], safe=""))
    given = urlencode({**_needed(route), **(query or {})})
    return request(f"{route.method} {where}{'?' if given else ''}{given}", body, kind)


def _needed(route: Route) -> dict[str, str]:
    """What the query of a route has to have."""
    fields = _fields_of(TABLE.signatures[route].query)
    return {field.encode_name: _plain(usual_of(field)) for field in fields if field.required}


def _fields_of(kind: Any) -> Sequence[inspect.Field]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _parameters(route: Route, usual: dict[str, str], body: bytes, kind: str) -> Iterator[Case]:
    wanted = TABLE.signatures[route].query
    for field in _fields_of(wanted):
        for value in values_of(field.type, JSON):
            if value is None:
                continue
            text = bytes(value).decode() if isinstance(value, msgspec.Raw) else _plain(value)
            given = {field.encode_name: text}
            is_long = len(quote(text)) > PIECE_BYTES
            is_beyond = _is_no(wanted, {**_needed(route), **given})
            refused = "anything" if is_long else field.encode_name if is_beyond else ""
            sent = _request(route, usual, body, kind=kind, query=given)
            yield Case(f"{field.encode_name} of the query", sent, refused)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_no(kind: Any, given: dict[str, str]) -> bool:
    """Whether a query is none of a route's."""
    try:
        msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return True
    return False


def _usual_body(route: Route) -> tuple[bytes, str]:
    wanted = TABLE.signatures[route].body
    if wanted is None:
        return b"", "application/json"
    if wanted is Upload:
        return b"x" * 600, TAR
    if wanted is Content:
        return b'{"text": "x"}', NDJSON
    found = inspect.type_info(wanted)
    assert isinstance(found, inspect.StructType)
    return _encoded(next(structs_of(found, JSON))[1]), "application/json"


def _bodies(route: Route, usual: dict[str, str]) -> Iterator[Case]:
    wanted = TABLE.signatures[route].body
    if wanted in (None, Upload):
        for data in (b"[" * 100_000, b"\x00" * 1_024, b'{"a": 1}'):
            kind = TAR if wanted is Upload else "application/json"
            yield Case("the body", _request(route, usual, data, kind=kind), "anything")
        return
    for one in (NewEvent, NewEvents) if wanted is Content else (wanted,):
        found = inspect.type_info(one)
        assert isinstance(found, inspect.StructType)
        for field, value in structs_of(found, JSON):
            if one is NewEvents and field == "events" and not value["events"]:
                continue  # then it is one event, and has no such field
            data = _encoded(value)
            refused = "" if _is_one(data, one) else field if _is_one(data, Any) else "anything"
            if route.is_open and len(data) > OPEN_BYTES_MAX:
                refused = "anything"
            yield Case(
                f"{field} of {one.__name__}",
                _request(route, usual, data, kind="application/json"),
                refused,
            )
            if one is NewEvent:
                what = f"{field} of a line"
                yield Case(what, _request(route, usual, data, kind=NDJSON))
    if wanted is Content:
        yield from _streams(route, usual)


def _streams(route: Route, usual: dict[str, str]) -> Iterator[Case]:
    """Bodies of Arrow."""
    for data in (b"", b"x" * (1 << 20), b"\xff" * 64):
        yield Case("Arrow", _request(route, usual, data, kind=ARROW), "anything")
    for what, batch in columns_extremes.batches():
        data = columns_extremes.stream(batch)
        yield Case(f"Arrow: {what}", _request(route, usual, data, kind=ARROW))


def _is_one(data: bytes, kind: Any) -> bool:
    """Whether a body is one of a kind."""
    try:
        msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


LEAST = {"lease_ms": 100}
"""Numbers for which the usual 1 is too small."""


def _encoded(value: Any) -> bytes:
    if isinstance(value, dict):
        known = {**NAMES, "name": f"n{next(_numbers)}"}
        value = {name: known.get(name, v) if v == "orders" else v for name, v in value.items()}
        value = {name: LEAST[name] if v == 1 and name in LEAST else v for name, v in value.items()}
    return msgspec.json.encode(value)


# --- asking ------------------------------------------------------------------------------


class HttpExtremes(HttpServed):
    """A realm with something in it, and somebody who asks."""

    def ask(self, case: Case) -> Answer:
        """Raises ``AssertionError`` for whatever nobody has thought of."""
        if not self._left:
            self.loop.run_until_complete(self.restart())
            self._left = self._each
        self._left -= 1
        answer: Answer = self.loop.run_until_complete(self._asked(case))
        for task in self._tasks:
            assert not task.done(), f"{case.what}: the realm has ended: {task}"
        return answer

    async def _asked(self, case: Case) -> Answer:
        with capture_logs() as logged:
            said = await self._said(case.data, PATIENCE_S if not case.refused else END_S)
        broken = [line for line in logged if line["log_level"] in ("error", "critical")]
        assert not broken, f"{case.what}: nobody has thought of this: {broken}"
        return answer_of(said)

    async def _said(self, data: bytes, patience_s: float) -> bytes:
        peer, out = HttpConnection(self._http), Wire()
        peer.connection_made(out)
        for at in range(0, len(data), PIECE_BYTES):
            if not out.is_closing():
                peer.data_received(data[at : at + PIECE_BYTES])
                await asyncio.sleep(0)
        for _ in range(TURNS):
            if out.said:
                break
            await asyncio.sleep(0)
        tasks = set(self._http.uvicorn.tasks)
        if tasks and not out.said:
            await asyncio.wait(tasks, timeout=patience_s)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        peer.connection_lost(None)
        if tasks := set(self._http.uvicorn.tasks):
            _, left = await asyncio.wait(tasks, timeout=END_S)
            assert not left, f"its client is gone, and it goes on: {left}"
        return bytes(out.said)


def answer_of(said: bytes) -> Answer:
    head, _, body = said.partition(b"\r\n\r\n")
    if not head:
        return Answer(0, "")
    status = int(head.split(b" ", 2)[1])
    reason = ""
    if status >= 400 and body.startswith(b"{"):
        reason = str(json.loads(body)["error"]["message"])
    return Answer(status, reason)


def check(case: Case, answer: Answer) -> None:
    """Raises ``AssertionError`` for an answer that is none, or not clear."""
    shown = f"{case.what}: {answer}"
    assert answer.status < 500 or answer.status in (503, 507), shown
    if case.refused:
        assert 400 <= answer.status < 500, shown
        assert case.refused == "anything" or case.refused in answer.reason, shown


def is_stream(name: str) -> bool:
    """Whether what a route answers with has no end."""
    return TABLE.signatures[routes()[name]].answer is Events


@lru_cache
def served() -> HttpExtremes:
    import atexit

    made = HttpExtremes(100)
    atexit.register(made.close)
    return made
