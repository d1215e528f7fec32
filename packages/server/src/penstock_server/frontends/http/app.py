"""The ASGI application of the HTTP front end, which answers each request."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_origin
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.api.realm import ReadRates
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    NameDoesNotExist,
    PenstockError,
    SignInLocked,
    Unavailable,
)
from penstock_core.vocabulary.names import destination_name
from penstock_server.frontends.http import metrics
from penstock_server.frontends.http.accepting import (
    JSON,
    STREAMED,
    accepted_form,
    check_has_chunks,
    not_accepted,
)
from penstock_server.frontends.http.binding import query_of
from penstock_server.frontends.http.doors import (
    PART_BYTES,
    FileAnswer,
    FileDoor,
    FileRequest,
    ServedFile,
    file_door,
)
from penstock_server.frontends.http.health import INCIDENTS_SHOWN_MAX, Health, State
from penstock_server.frontends.http.plain_requests import PlainCycle
from penstock_server.frontends.http.routing import (
    BASE,
    TAR,
    TARS,
    WRITES,
    Call,
    Content,
    Download,
    Events,
    EventStream,
    Payload,
    RefusalForm,
    Route,
    RouteMatch,
    RouteTable,
    Signature,
    Upload,
    form_of,
    run_while_there,
    target_of,
)
from penstock_server.frontends.http.shapes import ErrorAnswer, ErrorDetail
from penstock_server.frontends.http.statuses import Headers, raw_headers, status_of
from penstock_server.frontends.http.trace_context import headers_of
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

OPEN_BYTES_MAX: Final = SMALL_BYTES
"""Largest size in bytes of the body of a request without a signed-in user."""
REFUSED_S: Final = 0.25
"""Seconds to wait for the body of a refused request, which only the audit log uses."""
OCTETS: Final = "application/octet-stream"
MONITORING_PATHS: Final = frozenset(("/health", "/ready", "/metrics"))
"""Paths for monitoring the realm, which are answered even if all connections are in use."""
OTHER_FORMS: Final = (Events, Download)
"""Answers that are not JSON, or whose endpoint chooses the content type."""

_log = logger("penstock.http")


class Refusal(Exception):
    """Raised to answer with a status and headers other than those of the error."""

    def __init__(self, status: int, error: PenstockError, headers: Headers | None = None) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers or []


class App:
    """Answers requests until the realm stops."""

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
        except Exception:  # noqa: BLE001  a defect in one request must not end the others
            incident_id = new_incident_id()
            method, path = scope["method"], scope["path"][:200]
            _log.exception("request.failed", incident=incident_id, method=method, path=path)
            await request.refuse(500, as_internal_error(incident_id))


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
        self._has_begun = False
        self._is_unread = False
        """Whether the request may have a body that was not read to its end."""
        self._refusal_of: RefusalForm | None = None
        """Function that encodes errors for clients of the route; None for the form of the API."""
        self.method: str = scope["method"]
        self.path: str = scope["raw_path"].decode("ascii", "replace")
        self.query_string: bytes = scope["query_string"]
        self._version: str = scope["http_version"]
        self.headers: dict[str, str] = headers_of(scope["headers"])
        self.certificate: Mapping[str, Any] | None = scope["state"].get("certificate")
        self._is_spare = bool(scope["state"].get("is_spare"))
        """Whether the connection uses the reserve for monitoring."""
        self._relayed_by: str = scope["state"].get("relayed_by", "")
        """The cluster node that relays the connection; empty if it is direct."""
        cycle = getattr(receive, "__self__", None)
        self._plain = cycle if isinstance(cycle, PlainCycle) else None
        """The request, if it is plain. It then has shorter ways to read the body and to answer."""
        client, local = scope["client"], scope["server"]
        self.host = str(client[0]) if client else "localhost"
        self.local = str(local[0]) if local else "localhost"
        if self._version == "1.0" and "host" not in self.headers:
            # HTTP/1.0 does not require Host, and health checks of proxies omit it. Browsers always
            # send it, so the request cannot be DNS rebinding by a page of another site.
            self.headers["host"] = f"[{self.local}]" if ":" in self.local else self.local

    async def answer(self) -> None:
        """Answer the request. Raises ``Refusal`` or ``PenstockError`` if it is refused."""
        self._check_framing()
        changes = self.method in WRITES
        self._service.guard.check_site(self.headers, self.local, changes=changes)
        if self._is_spare and self.path not in MONITORING_PATHS:
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
        elif (door := file_door(self.path)) is not None:
            await self._file_behind(door)
        else:
            self._only_reads()
            await self._file()

    def _check_framing(self) -> None:
        """Refuse ambiguous framing, which a proxy might read as a request of another length
        (request smuggling)."""
        if "transfer-encoding" not in self.headers:
            return
        if "content-length" in self.headers or self._version == "1.0":
            error = InvalidArgument(
                "Transfer-Encoding and Content-Length cannot be combined, and Transfer-Encoding "
                "needs HTTP/1.1: send only one of them"
            )
            raise Refusal(400, error, [("connection", "close")])

    def _only_reads(self) -> None:
        """Raise ``Refusal`` for a method that changes something."""
        if self.method not in ("GET", "HEAD"):
            raise Refusal(
                405,
                InvalidArgument(f"{self.method} is not allowed here; use GET"),
                [("allow", "GET, HEAD")],
            )

    async def _health(self, path: str) -> None:
        """Answer ``/health`` or ``/ready``."""
        state: State = self._service.state
        if path == "/ready" and state == "ok" and self._service.stands_still:
            state = "standstill"
        incidents = self._service.realm.incidents.open()
        if incidents:
            state = "degraded" if state == "ok" else state
            if not await self._may_monitor():
                # Health checks usually do not sign in, so they must not learn the names of
                # channels.
                incidents = [replace(incident, channel="") for incident in incidents]
        is_serving = state in ("ok", "degraded")
        # A stopping realm is healthy, but not ready for more clients.
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
        """Answer with a file of the console."""
        file = self._service.files.find(self.path, self.headers.get("accept-encoding", ""))
        if file is None:
            raise NameDoesNotExist(f"the page {self.path[:200]} does not exist")
        # The tag includes its quotes, so that it cannot be a part of another one.
        if file.tag in self.headers.get("if-none-match", ""):
            await self.reply(304, b"", file.type, headers=file.headers)
        else:
            await self.reply(200, file.data, file.type, headers=file.headers)

    async def _file_behind(self, door: FileDoor) -> None:
        """Send a file, or the range of it that the client asks for."""
        query = self.query_string.decode("latin-1")
        request = FileRequest(
            self._service, self.method, self.path, query=query, headers=self.headers
        )
        self._refusal_of = partial(door.refusal, request)
        if (suspension := self._service.native.suspended) is not None:
            raise suspension
        self._only_reads()
        file = await door.find(request)
        with self._service.requests.one(file.reader), self._service.quotas.asking(file.reader):
            answer = file.answer_to(self.headers.get("range", ""))
            await self._to_viewer(self._send_file(file, answer))

    async def _send_file(self, file: ServedFile, answer: FileAnswer) -> None:
        length = ("content-length", str(answer.end - answer.start))
        await self._begin(answer.status, [length], OCTETS, headers=answer.headers)
        if self.method != "HEAD":
            for offset in range(answer.start, answer.end, PART_BYTES):
                size = min(PART_BYTES, answer.end - offset)
                await self._body_part(await file.read(offset, size), more=True)
        await self._body_part(b"", more=False)

    async def _api(self) -> None:
        """Answer a request to the API."""
        service = self._service
        if (suspension := service.native.suspended) is not None:
            raise Refusal(503, suspension)
        match = self._find_route()
        route = match.route
        self._refusal_of = route.refusal_of
        if route.is_open:
            principal = Principal(ANONYMOUS, self.host)
        else:
            changes = self.method in WRITES
            principal = await service.guard.identify(
                self.headers,
                self.host,
                self.certificate,
                changes=changes,
                takes_issued_tokens=route.takes_issued_tokens,
            )
            # A request with the cookie of a session is not a sign-in; the log-in was recorded.
            if "cookie" not in self.headers or "authorization" in self.headers:
                service.guard.access.signed_in(principal, "http")
        with self._share(route, principal), service.quotas.asking(principal) as carry:
            self._is_unread = self._declared_bytes > 0 or "transfer-encoding" in self.headers
            await self._check_right(principal, match)
            self._check_accepted(match.signature)
            declared = self._declared_bytes if match.signature.body is Content else 0
            carry(declared)  # refuses too large a body before it is read into memory
            body = await self._read_body(match, principal)
            self._is_unread = False
            # A chunked body declares no size, so it is counted once it is read.
            if isinstance(body, Content) and not declared:
                carry(len(body.data))
            call: Call[Any, Any] = Call(
                service,
                service.guard,
                principal,
                host=self.host,
                headers=self.headers,
                params=match.params,
                query=query_of(self.query_string, match.signature.query),
                body=body,
            )
            await self._run(call, match)

    def _share(self, route: Route, principal: Principal) -> AbstractContextManager[None]:
        """Count the request for its user. Open routes are not counted, so that a user at the limit
        can still sign in."""
        if route.is_open:
            return contextlib.nullcontext()
        return self._service.requests.one(principal)

    async def _check_right(self, principal: Principal, match: RouteMatch) -> None:
        """Raise ``AccessDenied`` if the user lacks the right, without reading a large body. A small
        body that arrives within ``REFUSED_S`` seconds is read, so that the audit record can name
        the object of the request."""
        route, access, name = match.route, self._service.guard.access, match.store_name
        if route.is_open or access.allows(principal, route.operation, name):
            return
        body = None
        with contextlib.suppress(PenstockError, Refusal, TimeoutError):
            if 0 < self._declared_bytes <= SMALL_BYTES and match.signature.body is not Upload:
                async with asyncio.timeout(REFUSED_S):
                    body = await self._read_body(match, principal)
                    self._is_unread = False
        async with access.act(
            principal, route.operation, name, target=target_of(match.params, body)
        ):
            pass  # entering act() raises AccessDenied and writes the audit record

    def _check_accepted(self, signature: Signature) -> None:
        """Refuse a request whose client accepts no form in which the answer is available. This runs
        before the request is executed, so that no change is made."""
        accept = self.headers.get("accept", "")
        if accept in ("", "*/*"):
            return
        forms = (JSON, *STREAMED) if signature.is_streamable else (JSON,)
        answer = signature.answer
        if answer in OTHER_FORMS or get_origin(answer) is Payload or accepted_form(accept, forms):
            return
        raise Refusal(406, not_accepted(accept, forms))

    async def _run(self, call: Call[Any, Any], match: RouteMatch) -> None:
        """Run the endpoint and send its answer."""
        answer = await self._run_cancellable(match.route.endpoint(call), match)
        if isinstance(answer, Events | EventStream):
            await self._stream(answer, call, match.route)
            return
        if isinstance(answer, Download):
            await self._download(answer)
            return
        headers = [("cache-control", "no-store"), *call.reply_headers]
        if isinstance(answer, Payload):
            if not asker.get().is_connected:
                # The client has disconnected. The events of a lease, for example, go back.
                answer.on_unsent()
            await self.reply(match.route.status, answer.data, answer.kind, headers=headers)
            return
        await self.reply(match.route.status, msgspec.json.encode(answer), JSON, headers=headers)

    def _find_route(self) -> RouteMatch:
        method = "GET" if self.method == "HEAD" else self.method
        match = self._table.find(method, self.path.removeprefix(BASE))
        if isinstance(match, RouteMatch):
            return match
        if match:
            allowed = ", ".join(sorted(match))
            error = InvalidArgument(
                f"{self.method[:20]} is not allowed here; allowed are {allowed}"
            )
            raise Refusal(405, error, [("allow", allowed)])
        raise NameDoesNotExist(
            f"the API has no path {self.path[:200]}; {BASE}/openapi.json lists the paths"
        )

    async def _run_cancellable(self, work: Coroutine[Any, Any, Any], match: RouteMatch) -> Any:
        """Run ``work`` and return its result. If the client disconnects, a request that only reads
        is cancelled with ``ConnectionLost``; one that makes changes runs to its end."""
        return await (run_while_there(work) if match.route.reads else work)

    async def _read_body(self, match: RouteMatch, principal: Principal) -> Any:
        """Read the body and return it as the type that the route expects."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            error = InvalidArgument(
                f"content encoding {encoding[:80]!r} is not supported; send the body uncompressed"
            )
            raise Refusal(415, error, [("accept-encoding", "identity")])
        if match.signature.body is not Upload:
            return self._decode(match, await self._content(kind, match.route, principal))
        if kind not in TARS:
            raise Refusal(
                415, InvalidArgument(f"the content type is {kind[:80]!r}; it must be {TAR}")
            )
        return Upload(self._upload_parts())

    @property
    def _declared_bytes(self) -> int:
        """The size in bytes that the request declares for its body; 0 without a declaration."""
        length = self.headers.get("content-length", "0")
        return int(length) if length.isdecimal() else 0

    async def _upload_parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in parts. Its size is not limited, but each part must arrive in time."""
        has_more = True
        while has_more:
            try:
                async with asyncio.timeout(self._service.limits.body_timeout_s):
                    message = await self._receive()
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] == "http.disconnect":
                raise Unavailable("the request ended before its body was complete")
            has_more = message.get("more_body", False)
            yield message.get("body", b"")

    def _too_slow(self) -> Refusal:
        """Return the refusal of a request whose body arrives too slowly."""
        seconds = self._service.limits.body_timeout_s
        return Refusal(408, Unavailable(f"the body did not arrive within {seconds:g} s"))

    async def _content(self, kind: str, route: Route, principal: Principal) -> Content:
        """Return the whole body. Raises ``Refusal`` if it is too large or arrives too slowly, and
        ``Unavailable`` if the client disconnects or too many bytes are in memory."""
        limits = self._service.limits
        bytes_max = OPEN_BYTES_MAX if route.is_open else limits.body_bytes_max
        too_large = Refusal(
            413, InvalidArgument(f"the body of this request may have at most {bytes_max} bytes")
        )
        declared = self._declared_bytes
        if declared > bytes_max:
            raise too_large
        # Most bodies are small, so that they are not counted, and have arrived with their head.
        if self._plain is not None and declared <= SMALL_BYTES:
            data = self._plain.take_whole_body()
            if data is not None:
                return Content(kind, data)
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

    def _decode(self, match: RouteMatch, content: Content) -> Any:
        """Return the body in the type that the route expects. Raises ``InvalidArgument``,
        ``Refusal``."""
        body_type = match.signature.body
        if body_type is None:
            if content.data.strip() not in (b"", b"{}", b"null"):
                raise InvalidArgument("this request takes no body; send it without one")
            return None
        if body_type is Content:
            return content
        form = form_of(body_type)
        if content.type != form:
            raise Refusal(
                415,
                InvalidArgument(f"the content type is {content.type[:80]!r}; it must be {form}"),
            )
        try:
            return content.decoded(body_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(content.explained(error, body_type)) from None

    # --- answers -------------------------------------------------------------------------

    async def refuse(
        self, status: int, error: PenstockError, headers: Headers | None = None
    ) -> None:
        """Answer with an error, unless the answer has begun already."""
        if self._has_begun:
            return
        all_headers = list(headers or ())
        # Not for requests of pages, because browsers would show their own sign-in dialog.
        if status == 401 and "sec-fetch-site" not in self.headers:
            all_headers.append(("www-authenticate", 'Basic realm="penstock", charset="UTF-8"'))
        is_long = self._declared_bytes > self._service.limits.body_bytes_max
        is_unread = self._is_unread and (status in (429, 503) or is_long)
        if status in (408, 413) or is_unread or self._is_spare:
            all_headers.append(("connection", "close"))  # the rest of the body is not read
        if error.retryable:
            wait_s = error.wait_s if isinstance(error, SignInLocked) else 1.0
            all_headers.append(("retry-after", str(math.ceil(wait_s))))
        self._service.realm.connections.count_error(error)
        all_headers.append(("cache-control", "no-store"))
        if self._refusal_of is None:
            detail = ErrorDetail(code=error.code, message=str(error), retryable=error.retryable)
            kind, document = JSON, msgspec.json.encode(ErrorAnswer(error=detail))
        else:
            status, kind, document = self._refusal_of(status, error)
        await self.reply(status, document, kind, headers=all_headers)

    async def reply(
        self, status: int, data: bytes, kind: str = JSON, headers: Headers | None = None
    ) -> None:
        """Send a complete answer."""
        length = ("content-length", str(len(data)))
        data = b"" if self.method == "HEAD" else data
        if self._plain is not None and self._plain.is_writable:
            self._has_begun = True
            fields = raw_headers(kind, [length], headers, is_secure=self._service.is_secure)
            self._plain.send_whole(status, fields, data)
            return
        await self._begin(status, [length], kind, headers=headers)
        await self._body_part(data, more=False)

    async def _begin(
        self, status: int, framing: Headers, kind: str, headers: Headers | None = None
    ) -> None:
        """Send the status and the headers. ``framing`` has the headers about the length of the
        body."""
        self._has_begun = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": raw_headers(kind, framing, headers, is_secure=self._service.is_secure),
            }
        )

    async def _body_part(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body. Raises ``TimeoutError`` if the client does not read it."""
        async with asyncio.timeout(self._service.limits.send_timeout_s):
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stream(
        self, events: Events | EventStream, call: Call[Any, Any], route: Route
    ) -> None:
        """Send events until the stream ends, or the viewer disconnects, loses its right to read the
        channel, or does not read from the connection."""

        def check() -> None:
            now_us = self._service.realm.clock.now_us()
            call.guard.check_still(call.principal, call.headers, now_us)
            named = call.params.get("channel") or call.params.get("queue")
            call.check_right(route.operation, destination_name(named) if named else "")

        try:
            if isinstance(events, EventStream):
                check_has_chunks(self._version)
            with self._service.viewing(events, call.principal, check):
                await self._to_viewer(self._send_stream(events))
        finally:
            events.close()

    async def _download(self, file: Download) -> None:
        """Send a file that is made while it is sent."""
        quoted = quote(file.name, safe="")
        headers = [
            ("cache-control", "no-store"),
            ("content-disposition", f"attachment; filename*=UTF-8''{quoted}"),
        ]

        async def send() -> None:
            await self._begin(200, [("content-length", str(file.size))], TAR, headers=headers)
            await self._send_parts(file.parts)

        try:
            await self._to_viewer(send())
        finally:
            file.close()

    async def _to_viewer(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send a file or a stream. If the client does not read, or an error occurs in the middle,
        the connection is closed, so that the client sees a truncated body."""
        try:
            await self._while_there(sending)
        except* TimeoutError:
            _log.info("viewer.dropped", peer=self.host, reason="the client is not reading")
        except* PenstockError as reasons:
            _log.info("viewer.dropped", peer=self.host, reason=str(reasons.exceptions[0]))

    async def _while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it ends or the client disconnects."""
        async with asyncio.TaskGroup() as tasks:
            # The task that ends first cancels the other one, because the group waits for both.
            sending = tasks.create_task(work)
            sending.add_done_callback(lambda _: watching.cancel())
            watching = tasks.create_task(self._wait_for_disconnect())
            watching.add_done_callback(lambda _: sending.cancel())

    async def _send_stream(self, events: Events | EventStream) -> None:
        # The second header makes nginx pass events on without buffering.
        headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")]
        await self._begin(200, [], events.kind, headers=headers)
        await self._send_parts(events.parts)

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Send a body that is made while it is sent."""
        if self.method != "HEAD":
            async with contextlib.aclosing(parts) as open_parts:
                async for part in open_parts:
                    await self._body_part(part, more=True)
        await self._body_part(b"", more=False)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
