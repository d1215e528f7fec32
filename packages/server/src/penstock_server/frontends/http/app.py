"""One HTTP request from its bytes to its answer: an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec.structs import replace

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.api.realm import ReadRates
from penstock_core.loggers import logger
from penstock_core.vocabulary.argument_errors import ABSENT, explain
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameDoesNotExist,
    PenstockError,
    RealmStopping,
    SignInLocked,
    Unavailable,
)
from penstock_core.vocabulary.names import destination_name
from penstock_server.frontends.http import metrics
from penstock_server.frontends.http.accepting import JSON, accepted_form, not_accepted
from penstock_server.frontends.http.health import INCIDENTS_SHOWN_MAX, Health, State
from penstock_server.frontends.http.routing import (
    BASE,
    TAR,
    TARS,
    WRITES,
    Call,
    Content,
    Download,
    Events,
    Payload,
    Route,
    RouteMatch,
    RouteTable,
    Upload,
    run_while_there,
    target_of,
)
from penstock_server.frontends.http.shapes import ErrorAnswer, ErrorDetail
from penstock_server.frontends.http.statuses import status_of
from penstock_server.frontends.shared.buffers import SMALL_BYTES
from penstock_server.runtime.access.askers import asker
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import check

if TYPE_CHECKING:
    from penstock_server.frontends.http.http_service import HttpService

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[str, str]]

QUERY_BYTES_MAX: Final = 128 << 10
OPEN_BYTES_MAX: Final = SMALL_BYTES
"""Most bytes in the body of a request without a signed-in user."""
REFUSED_S: Final = 0.25
"""Seconds to wait for the body of a refused request, which only the audit log uses."""
HSTS: Final = ("strict-transport-security", "max-age=31536000")
LOOKS: Final = frozenset(("/health", "/ready", "/metrics"))
"""Paths that tell whether the realm works; they are answered even when all connections are
taken."""
SECURITY: Final[Headers] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
]
OTHER_FORMS: Final = (Events, Download, Payload)
"""Answers that are not JSON, or whose endpoint chooses the form."""
PAGE: Final[Headers] = [
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'",
    ),
    ("cache-control", "no-cache"),
]

_log = logger("penstock.http")


class Refusal(Exception):
    """An answer other than the route's own."""

    def __init__(self, status: int, error: PenstockError, headers: Headers | None = None) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers or []


class App:
    """Answers requests until the realm ends."""

    def __init__(self, service: HttpService, table: RouteTable) -> None:
        self._service = service
        self._table = table

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        asker.set(scope["state"]["asker"])
        request = HttpRequest(self._service, self._table, scope, receive=receive, send=send)
        try:
            await request.answer()
        except Refusal as refusal:
            await request.refuse(refusal.status, refusal.error, refusal.headers)
        except PenstockError as error:
            await request.refuse(status_of(error), error)
        except Exception:  # noqa: BLE001  a task's root: the others must live on
            number = new_incident_id()
            method, path = scope["method"], scope["path"][:200]
            _log.exception("request.failed", incident=number, method=method, path=path)
            await request.refuse(500, as_internal_error(number))


class HttpRequest:
    """One request and its answer."""

    def __init__(
        self,
        service: HttpService,
        table: RouteTable,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        self._service = service
        self._table = table
        self._receive = receive
        self._send = send
        self._began = False
        self._is_unread = False
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii", "replace")
        self.query_string: bytes = scope["query_string"]
        self._version: str = scope["http_version"]
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        self.certificate: Mapping[str, Any] | None = scope["state"].get("certificate")
        self._is_spare = bool(scope["state"].get("is_spare"))
        self._relayed_by: str = scope["state"].get("relayed_by", "")
        """The node of the cluster that relays the connection; empty: none."""
        client, local = scope["client"], scope["server"]
        self.host = str(client[0]) if client else "localhost"
        self.local = str(local[0]) if local else "localhost"
        if self._version == "1.0" and "host" not in self.headers:
            # HTTP/1.0 needs no Host, and health checks of proxies send none. No browser leaves it
            # out, so the request cannot come from a page whose name leads here.
            self.headers["host"] = f"[{self.local}]" if ":" in self.local else self.local

    async def answer(self) -> None:
        """Answer the request, or raise why it is refused."""
        self._check_framing()
        changes = self.method in WRITES
        self._service.guard.check_site(self.headers, self.local, changes=changes)
        if self._is_spare and self.path not in LOOKS:
            raise Unavailable(
                f"{self._service.limits.connections_max} connections are busy "
                "(http.connections_max); try again in a moment"
            )
        if self.path.startswith(f"{BASE}/"):
            await self._api()
        elif self.path in ("/health", "/ready"):
            self._only_reads()
            await self._health(self.path)
        elif self.path == "/metrics":
            self._only_reads()
            await self._metrics()
        else:
            self._only_reads()
            await self._file()

    def _check_framing(self) -> None:
        """Refuse framing that a proxy might read as a request of another length."""
        if "transfer-encoding" not in self.headers:
            return
        if "content-length" in self.headers or self._version == "1.0":
            error = InvalidArgument(
                "Transfer-Encoding and Content-Length cannot be combined, and Transfer-Encoding "
                "needs HTTP/1.1: send only one of them"
            )
            raise Refusal(400, error, [("connection", "close")])

    def _only_reads(self) -> None:
        if self.method not in ("GET", "HEAD"):
            raise Refusal(
                405,
                InvalidArgument(f"{self.method} is not allowed here; use GET"),
                [("allow", "GET, HEAD")],
            )

    async def _health(self, path: str) -> None:
        state: State = self._service.state
        if path == "/ready" and state == "ok" and self._service.stands_still:
            state = "standstill"
        incidents = self._service.realm.incidents.open()
        if incidents:
            state = "degraded" if state == "ok" else state
            if not await self._may_monitor():
                incidents = [replace(each, channel="") for each in incidents]
        is_serving = state in ("ok", "degraded")
        is_good = is_serving if path == "/ready" else state not in ("failed", "no-quorum")
        health = Health(status=state, incidents=incidents[:INCIDENTS_SHOWN_MAX])
        await self.reply(200 if is_good else 503, msgspec.json.encode(health))

    async def _may_monitor(self) -> bool:
        guard = self._service.guard
        try:
            principal = await guard.identify(
                self.headers, self.host, self.certificate, changes=False
            )
            check(Caller(self._service.realm, principal), ReadRates())
        except (Refusal, PenstockError):
            return False
        return True

    async def _metrics(self) -> None:
        guard = self._service.guard
        principal = await guard.identify(self.headers, self.host, self.certificate, changes=False)
        check(Caller(self._service.realm, principal), ReadRates())
        if self._relayed_by:
            text = metrics.relayed_exposition(self._service.native, self._relayed_by)
        else:
            text = metrics.exposition(self._service.registry)
        await self.reply(200, text, metrics.CONTENT_TYPE, headers=[("cache-control", "no-store")])

    async def _file(self) -> None:
        file = self._service.files.find(self.path)
        if file is None:
            raise NameDoesNotExist(f"there is nothing at {self.path[:200]}")
        headers = [("etag", file.tag), *PAGE]
        if file.tag in self.headers.get("if-none-match", ""):
            await self.reply(304, b"", file.type, headers=headers)
        else:
            await self.reply(200, file.data, file.type, headers=headers)

    async def _api(self) -> None:
        service = self._service
        if (why := service.native.suspended) is not None:
            raise Refusal(503, why)
        found = self._found()
        route = found.route
        if route.is_open:
            principal = Principal(ANONYMOUS, self.host)
        else:
            changes = self.method in WRITES
            principal = await service.guard.identify(
                self.headers, self.host, self.certificate, changes=changes
            )
            if "cookie" not in self.headers or "authorization" in self.headers:
                service.guard.access.signed_in(principal, "http")
        with self._share(route, principal), service.quotas.asking(principal) as carry:
            self._is_unread = self._claimed > 0 or "transfer-encoding" in self.headers
            await self._check_right(principal, found)
            self._check_accepted(found.signature.answer)
            claimed = self._claimed if found.signature.body is Content else 0
            carry(claimed)  # refused before a byte is read into memory
            body = await self._given(found, principal)
            self._is_unread = False
            if isinstance(body, Content) and not claimed:
                carry(len(body.data))
            call: Call[Any, Any] = Call(
                service,
                service.guard,
                principal,
                host=self.host,
                headers=self.headers,
                params=found.params,
                query=self._query(found),
                body=body,
            )
            await self._answered(call, found)

    def _share(self, route: Route, principal: Principal) -> AbstractContextManager[None]:
        """Count the request for its user. Open routes count for nobody, so that a busy user can
        still sign in."""
        if route.is_open:
            return contextlib.nullcontext()
        return self._service.requests.one(principal)

    async def _check_right(self, principal: Principal, found: RouteMatch) -> None:
        """Raise ``AccessDenied`` before the body is read. The audit record names what a small body
        that has already arrived is about."""
        route, access, name = found.route, self._service.guard.access, _store_in(found)
        if route.is_open or access.allows(principal, route.operation, name):
            return
        body = None
        with contextlib.suppress(PenstockError, Refusal, TimeoutError):
            if 0 < self._claimed <= SMALL_BYTES and found.signature.body is not Upload:
                async with asyncio.timeout(REFUSED_S):
                    body = await self._given(found, principal)
                    self._is_unread = False
        async with access.act(
            principal, route.operation, name, target=target_of(found.params, body)
        ):
            pass

    def _check_accepted(self, answer: Any) -> None:
        """Refuse a request whose client does not accept JSON, where the answer comes in no other
        form: before anything is done, so that a change is not made and then refused."""
        accept = self.headers.get("accept", "")
        if answer in OTHER_FORMS or accepted_form(accept, (JSON,)):
            return
        raise Refusal(406, not_accepted(accept, (JSON,)))

    async def _answered(self, call: Call[Any, Any], found: RouteMatch) -> None:
        answer = await self._while_asked(found.route.endpoint(call), found)
        if isinstance(answer, Events):
            await self._stream(answer, call, found.route)
            return
        if isinstance(answer, Download):
            await self._download(answer)
            return
        headers = [("cache-control", "no-store"), *call.reply_headers]
        if isinstance(answer, Payload):
            if not asker.get().is_there:
                answer.on_unsent()
            await self.reply(found.route.status, answer.data, answer.kind, headers=headers)
            return
        await self.reply(found.route.status, msgspec.json.encode(answer), JSON, headers=headers)

    def _found(self) -> RouteMatch:
        method = "GET" if self.method == "HEAD" else self.method
        found = self._table.find(method, self.path.removeprefix(BASE))
        if isinstance(found, RouteMatch):
            return found
        if found:
            allowed = ", ".join(sorted(found))
            error = InvalidArgument(
                f"{self.method[:20]} is not allowed here; allowed are {allowed}"
            )
            raise Refusal(405, error, [("allow", allowed)])
        raise NameDoesNotExist(
            f"the API has no {self.path[:200]}; {BASE}/openapi.json lists what there is"
        )

    async def _while_asked(self, work: Coroutine[Any, Any, Any], found: RouteMatch) -> Any:
        """Run ``work`` and give its result. One that only reads is cancelled, with
        ``ConnectionLost``, when its client disconnects; one that changes something runs to its
        end."""
        return await (run_while_there(work) if found.route.reads else work)

    def _query(self, found: RouteMatch) -> Any:
        if len(self.query_string) > QUERY_BYTES_MAX:
            raise InvalidArgument(
                f"{len(self.query_string)} bytes; at most {QUERY_BYTES_MAX} are allowed"
            )
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(self.query_string),
                errors="strict",
            )
        except ValueError as error:
            raise InvalidArgument(f"the query cannot be read: {error}") from None
        if len({name for name, _ in pairs}) < len(pairs):
            raise InvalidArgument("the query gives a parameter twice")
        try:
            return msgspec.convert(dict(pairs), found.signature.query, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArgument(
                explain(error, dict(pairs), kind=found.signature.query, whole="the query")
            ) from None

    async def _given(self, found: RouteMatch, principal: Principal) -> Any:
        """The body as the route's type."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            error = InvalidArgument(
                f"content encoding {encoding[:80]!r} is not supported; send the body as it is"
            )
            raise Refusal(415, error, [("accept-encoding", "identity")])
        if found.signature.body is not Upload:
            return self._body(found, await self._content(kind, found.route, principal))
        if kind not in TARS:
            raise Refusal(415, InvalidArgument(f"content type {kind[:80]!r}; it must be {TAR}"))
        return Upload(self._uploaded())

    @property
    def _claimed(self) -> int:
        """The body size that the request declares; 0: none."""
        claimed = self.headers.get("content-length", "0")
        return int(claimed) if claimed.isdecimal() else 0

    async def _uploaded(self) -> AsyncGenerator[bytes, None]:
        """The body in parts, without a limit on its length, as long as parts keep coming."""
        more = True
        while more:
            try:
                async with asyncio.timeout(self._service.limits.body_timeout_s):
                    message = await self._receive()
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] == "http.disconnect":
                raise Unavailable("the request ended before its body was complete")
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def _too_slow(self) -> Refusal:
        seconds = self._service.limits.body_timeout_s
        return Refusal(408, Unavailable(f"the body did not come within {seconds:g} s"))

    async def _content(self, kind: str, route: Route, principal: Principal) -> Content:
        """The whole body. Raises ``Refusal`` if it is too large, or comes too slowly."""
        limits = self._service.limits
        bytes_max = OPEN_BYTES_MAX if route.is_open else limits.body_bytes_max
        too_large = Refusal(
            413, InvalidArgument(f"the body of this request may have at most {bytes_max} bytes")
        )
        if self._claimed > bytes_max:
            raise too_large
        parts: list[bytes] = []
        size = 0
        with self._service.buffers.body(principal) as grow:
            try:
                async with asyncio.timeout(limits.body_timeout_s):
                    while True:
                        message = await self._receive()
                        if message["type"] == "http.disconnect":
                            raise Unavailable("the request ended before its body was complete")
                        part = message.get("body", b"")
                        size += len(part)
                        grow(size)
                        parts.append(part)
                        if size > bytes_max:
                            raise too_large
                        if not message.get("more_body"):
                            return Content(kind, b"".join(parts))
            except TimeoutError:
                raise self._too_slow() from None

    def _body(self, found: RouteMatch, content: Content) -> Any:
        wanted = found.signature.body
        if wanted is None:
            if content.data.strip() not in (b"", b"{}", b"null"):
                raise InvalidArgument("this request takes no body")
            return None
        if wanted is Content:
            return content
        if content.type != JSON:
            raise Refusal(
                415, InvalidArgument(f"content type {content.type[:80]!r}; it must be {JSON}")
            )
        try:
            return msgspec.json.decode(content.data, type=wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(_explained(error, content.data, wanted)) from None

    # --- what is answered ----------------------------------------------------------------

    async def refuse(
        self, status: int, error: PenstockError, headers: Headers | None = None
    ) -> None:
        """Answer with an error, unless the answer has begun already."""
        if self._began:
            return
        own = list(headers or ())
        if status == 401 and "sec-fetch-site" not in self.headers:
            own.append(("www-authenticate", 'Basic realm="penstock", charset="UTF-8"'))
        is_long = self._claimed > self._service.limits.body_bytes_max
        is_unread = self._is_unread and (status in (429, 503) or is_long)
        if status in (408, 413) or is_unread or self._is_spare:
            own.append(("connection", "close"))  # the rest of the body is not read
        if error.retryable:
            wait_s = error.wait_s if isinstance(error, SignInLocked) else 1.0
            own.append(("retry-after", str(math.ceil(wait_s))))
        self._service.realm.connections.refused(error)
        detail = ErrorDetail(code=error.code, message=str(error), retryable=error.retryable)
        own.append(("cache-control", "no-store"))
        await self.reply(status, msgspec.json.encode(ErrorAnswer(error=detail)), JSON, headers=own)

    async def reply(
        self, status: int, data: bytes, kind: str = JSON, headers: Headers | None = None
    ) -> None:
        """Send a complete answer."""
        await self._begin(status, [("content-length", str(len(data)))], kind, headers=headers)
        await self._body_part(b"" if self.method == "HEAD" else data, more=False)

    async def _begin(
        self, status: int, own: Headers, kind: str, headers: Headers | None = None
    ) -> None:
        self._began = True
        every = [("content-type", kind), *own, *SECURITY, *(headers or ())]
        if self._service.is_secure:
            every.append(HSTS)
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode("latin-1")) for name, value in every],
            }
        )

    async def _body_part(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body. Raises ``TimeoutError`` when the peer does not read it."""
        async with asyncio.timeout(self._service.limits.send_timeout_s):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stream(self, events: Events, call: Call[Any, Any], route: Route) -> None:
        """Send events until they end, the viewer leaves or loses the right to see them, or it does
        not read them."""

        def check() -> None:
            now_us = self._service.realm.clock.now_us()
            call.guard.check_still(call.principal, call.headers, now_us)
            named = call.params.get("channel") or call.params.get("queue")
            call.may(route.operation, destination_name(named) if named else "")

        try:
            with self._service.viewing(events, call.principal, check):
                await self._while_there(self._told(events))
        except* TimeoutError:
            _log.info("viewer.dropped", peer=self.host, reason="the client is not reading")
        finally:
            events.close()

    async def _download(self, file: Download) -> None:
        """Send a file. If it fails in the middle, the connection is closed, so that the client sees
        a short body and no apparent success."""
        shown = quote(file.name, safe="")
        headers = [
            ("cache-control", "no-store"),
            ("content-disposition", f"attachment; filename*=UTF-8''{shown}"),
        ]

        async def send() -> None:
            await self._begin(200, [("content-length", str(file.size))], TAR, headers=headers)
            if self.method != "HEAD":
                async with contextlib.aclosing(file.parts) as parts:
                    async for part in parts:
                        await self._body_part(part, more=True)
            await self._body_part(b"", more=False)

        try:
            await self._while_there(send())
        except* TimeoutError:
            _log.info("viewer.dropped", peer=self.host, reason="the client is not reading")
        except* PenstockError as reasons:
            _log.info("viewer.dropped", peer=self.host, reason=str(reasons.exceptions[0]))
        finally:
            file.close()

    async def _while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it ends or the peer disconnects."""
        async with asyncio.TaskGroup() as tasks:
            told = tasks.create_task(work)
            told.add_done_callback(lambda _: gone.cancel())
            gone = tasks.create_task(self._gone())
            gone.add_done_callback(lambda _: told.cancel())

    async def _told(self, events: Events) -> None:
        headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")]
        await self._begin(200, [], "text/event-stream", headers=headers)
        if self.method != "HEAD":
            async with contextlib.aclosing(events.messages) as messages:
                async for part in messages:
                    await self._body_part(part, more=True)
        await self._body_part(b"", more=False)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def stopping() -> RealmStopping:
    return RealmStopping("the realm is shutting down")


def _store_in(found: RouteMatch) -> str:
    """Name of the channel or queue that a request is about; empty: none."""
    named = found.params.get("channel") or found.params.get("queue")
    return destination_name(named) if named else ""


def _explained(fault: Exception, body: bytes, wanted: Any) -> str:
    """What is wrong with a body, and the offending value if there is one."""
    given = ABSENT
    if isinstance(fault, msgspec.ValidationError):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            given = msgspec.json.decode(body)
    return explain(fault, given, kind=wanted, whole="the body")
