"""The table of routes, which maps methods and paths to endpoints with their parameters and bodies.

A path is split before it is percent-decoded, so that a name with slashes is a single part:
``channels/flights%2Fdelays``.
"""

from __future__ import annotations

import asyncio
import contextlib
import typing
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock_core.access.rights import Principal
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.operations import REQUESTS, operation_on
from penstock_core.api.requests import AnswerT, Kind, Request
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.argument_errors import ABSENT, explain
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_core.vocabulary.names import destination_name
from penstock_server.frontends.http.accepting import FORM, JSON
from penstock_server.frontends.http.joining import join_of
from penstock_server.frontends.http.people_shapes import AclChange
from penstock_server.frontends.http.realm_shapes import NewJoin
from penstock_server.frontends.http.shapes import FormBody
from penstock_server.runtime.access.askers import asker
from penstock_server.runtime.operations.callers import HTTP_SESSION, Caller
from penstock_server.runtime.operations.door import answer_to, execute, execute_on

if TYPE_CHECKING:
    from penstock_server.frontends.http.access import Guard
    from penstock_server.frontends.http.http_service import HttpService
    from penstock_server.runtime.realm import RunningRealm

QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")

BASE: Final = "/api/v1"

FORM_FIELDS_MAX: Final = 100
"""Maximum number of fields of a form."""
TAR: Final = "application/x-tar"
TARS: Final = (TAR, "application/octet-stream")
"""Content types of an upload; the second is for clients that do not know the type of tar files."""
RECENT_MAX: Final = 256
"""Maximum number of paths whose route is cached; all are dropped above it."""
RECENT_PATH_MAX: Final = 256
"""Maximum number of characters of a path whose route is cached."""
WRITES: Final = frozenset(("POST", "PUT", "PATCH", "DELETE"))


def form_of(body_type: Any) -> str:
    """Return the content type of bodies that are decoded as this type."""
    is_form = isinstance(body_type, type) and issubclass(body_type, FormBody)
    return FORM if is_form else JSON


class Content(NamedTuple):
    """A request's whole body."""

    type: str
    """Media type, without parameters."""
    data: bytes

    def decoded(self, body_type: Any) -> Any:
        """Return the body as a value of the type.

        Raises ``msgspec.DecodeError``, ``UnicodeDecodeError``, ``RecursionError``, and
        ``InvalidArgument`` for a form, without its text, because a field may be a secret.
        """
        if form_of(body_type) == JSON:
            return msgspec.json.decode(self.data, type=body_type)
        try:
            pairs = parse_qsl(
                self.data.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=FORM_FIELDS_MAX,
            )
        except ValueError:
            raise InvalidArgument(
                f"the body is not a form in percent-encoded UTF-8 of at most {FORM_FIELDS_MAX} "
                f"fields"
            ) from None
        if len({name for name, _ in pairs}) < len(pairs):
            raise InvalidArgument("the form gives a field twice")
        return msgspec.convert(dict(pairs), body_type)

    def explained(self, fault: Exception, body_type: Any) -> str:
        """Return the text of an error in the body, with the invalid value if one can be
        decoded."""
        document = ABSENT
        # A form may have secrets in any field, so its values are not shown.
        if isinstance(fault, msgspec.ValidationError) and form_of(body_type) == JSON:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                document = msgspec.json.decode(self.data)
        return explain(fault, document, kind=body_type, whole="the body")


class Upload(NamedTuple):
    """A request's body in parts, with no limit of size."""

    parts: AsyncGenerator[bytes, None]


class Payload(Generic[AnswerT]):
    """An answer that consists of bytes with a content type. The type parameter is the type of the
    JSON form."""

    def __init__(
        self, data: bytes, kind: str, *, on_unsent: Callable[[], None] = lambda: None
    ) -> None:
        """``on_unsent`` is called if the client disconnected before the answer was sent."""
        self.data = data
        self.kind = kind
        self.on_unsent = on_unsent


class Download:
    """A file that is sent while it is being produced."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        name: str,
        size: int,
        close: Callable[[], None],
    ) -> None:
        self.parts = parts
        self.name = name
        self.size = size
        self.close = close
        """Frees the resources of the file; called even if the file was not read."""


class Events:
    """A stream of server-sent events, sent line by line until it ends or the viewer leaves."""

    kind: Final = "text/event-stream"
    """Content type."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        stop: Callable[[PenstockError], None],
    ) -> None:
        self.parts = parts
        """The server-sent events."""
        self.close = close
        """Frees the resources of the stream; called even if the stream was not read."""
        self.stop = stop
        """Ends the stream from the realm's side, with the reason."""


class EventStream:
    """All selected events, sent in parts while they are read. If it fails in the middle, the body
    has no regular end, so that the client notices it."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        kind: str,
        close: Callable[[], None],
        stop: Callable[[PenstockError], None],
    ) -> None:
        self.parts = parts
        self.kind = kind
        """Content type."""
        self.close = close
        """Frees the resources of the stream; called even if the stream was not read."""
        self.stop = stop
        """Breaks the stream off from the realm's side, with the reason."""


class Call(Generic[QueryT, BodyT]):
    """A validated and authorized request, the argument of every endpoint."""

    __slots__ = (
        "body",
        "caller",
        "guard",
        "headers",
        "host",
        "params",
        "principal",
        "query",
        "reply_headers",
        "service",
    )

    def __init__(
        self,
        service: HttpService,
        guard: Guard,
        principal: Principal,
        host: str,
        headers: Mapping[str, str],
        params: Mapping[str, str],
        query: QueryT,
        body: BodyT,
    ) -> None:
        self.service = service
        self.guard = guard
        self.principal = principal
        self.caller = Caller(
            service.realm,
            principal,
            HTTP_SESSION,
            version=service.version,
            is_secure=guard.is_secure,
        )
        self.host = host
        self.headers = headers
        self.params = params
        self.query = query
        self.body = body
        self.reply_headers: list[tuple[str, str]] = []
        """Headers of the answer."""

    @property
    def realm(self) -> RunningRealm:
        return self.service.realm

    @property
    def target(self) -> str:
        """The subject of the request, for the audit log."""
        return target_of(self.params, self.body)

    async def ask(self, request: Request[AnswerT], **detail: Any) -> AnswerT:
        """Execute an operation of the realm. Raises ``AccessDenied`` and the operation's errors."""
        return await execute(self.caller, request, target=self.target, **detail)

    async def ask_with(
        self, request: Request[AnswerT], parts: AsyncGenerator[bytes, None]
    ) -> AnswerT:
        """Execute an operation as :meth:`ask` does, with a body that arrives in parts."""
        return await execute(self.caller, request, parts, target=self.target)

    async def ask_while_there(self, request: Request[AnswerT]) -> AnswerT:
        """Execute an operation as :meth:`ask` does, until the client disconnects. The operation is
        then cancelled, and the call raises ``ConnectionLost``."""
        return await run_while_there(self.ask(request))

    async def answer(self, request: Request[AnswerT]) -> AnswerT:
        """Execute an operation that needs no other right than that of the route."""
        answer: AnswerT = await answer_to(self.caller, request)
        return answer

    async def ask_here(
        self,
        request_type: type[Request[AnswerT]],
        request_of: Callable[[ChannelOpened], Request[AnswerT]],
    ) -> AnswerT:
        """Execute an operation on the channel or queue that the path names."""
        name, kind = named(self)
        return await execute_on(
            self.caller,
            kind,
            name,
            request_type=request_type,
            request_of=request_of,
            target=self.target,
        )

    def check_right(self, operation: str, name: str = "") -> None:
        """Check a right in addition to that of the route. Raises ``AccessDenied``."""
        self.guard.access.require(self.principal, operation, name)


async def run_while_there(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run ``work`` and return its result. If the client disconnects, cancel ``work`` and raise
    ``ConnectionLost``."""
    client = asker.get()
    task = start_task(work, on_failure=leave_to_owner)

    def end() -> None:
        task.cancel()

    unregister = client.on_gone(end)
    try:
        return await task
    except asyncio.CancelledError:
        client.check()  # raises ConnectionLost if the client caused the cancellation
        raise
    finally:
        unregister()


Endpoint = Callable[[Any], Coroutine[Any, Any, Any]]
RefusalForm = Callable[[int, PenstockError], tuple[int, str, bytes]]
"""Returns the status, content type and body of an error, from its status in the API."""


class Examples:
    """Examples of a request's body and of the answer to it."""

    def __init__(self, body: Any, answer: Any) -> None:
        self.body = body
        self.answer = answer


class Signature(NamedTuple):
    """The types and texts of an endpoint, read from its annotations and docstring."""

    query: Any
    body: Any
    """Type of the body; None if it has no body."""
    answer: Any
    summary: str
    description: str
    is_streamable: bool = False
    """Whether the answer is also available as an :class:`EventStream`."""


class Route(NamedTuple):
    name: str
    """Name of the operation in generated clients. It must not change, because programs use it."""
    method: str
    path: str
    """Path below :data:`BASE`; ``{name}`` stands for one percent-encoded part."""
    asks: type[Request[Any]] | None
    """Type of the realm request that the endpoint executes. If the endpoint executes several
    requests, the type whose right covers all of them; None if it executes no request."""
    endpoint: Endpoint
    status: int = 200
    only_asks: bool = False
    """Whether the route changes nothing, although its method usually makes changes."""
    examples: Examples | None = None
    """Examples for the OpenAPI document."""
    signature: Signature | None = None
    """The signature; None if it is to be read from the annotations of the endpoint."""
    refusal_of: RefusalForm | None = None
    """Form of errors, if the route follows the specification of another project."""
    refusal_type: Any = None
    """Type of the JSON bodies that ``refusal_of`` makes."""
    takes_issued_tokens: bool = False
    """Whether the route accepts tokens that the realm has issued for passwords."""

    @property
    def reads(self) -> bool:
        """Whether the route changes nothing, so that its request may be cancelled at any time."""
        return self.only_asks or self.method not in WRITES

    @property
    def is_open(self) -> bool:
        """Whether the route is answered without authentication."""
        return self.asks is None or REQUESTS[self.asks].is_open

    @property
    def operation(self) -> str:
        """The operation whose right the route needs, a key of ``OPERATIONS``."""
        if self.asks is None:
            return "session.open"
        is_queue = self.path.startswith("queues") or "{queue}" in self.path
        return operation_on(self.asks, "queue" if is_queue else "channel")


def signature_of(route: Route) -> Signature:
    """Return the signature of a route. Without :attr:`Route.signature`, it is read from the
    annotations and the docstring of the endpoint."""
    if route.signature is not None:
        return route.signature
    hints = typing.get_type_hints(route.endpoint)
    query, body = typing.get_args(hints["call"])
    answer = hints["return"]
    is_streamable = EventStream in typing.get_args(answer)
    if is_streamable:
        (answer,) = (kind for kind in typing.get_args(answer) if kind is not EventStream)
    signature = described(
        route.endpoint.__doc__ or "",
        query=query,
        body=None if body is type(None) else body,
        answer=answer,
    )
    return signature._replace(is_streamable=is_streamable)


def described(text: str, *, query: Any, body: Any, answer: Any) -> Signature:
    """Return a signature; the first paragraph of ``text`` is the summary, the rest the
    description."""
    summary, _, rest = text.strip().partition("\n\n")
    return Signature(
        query, body, answer, summary=" ".join(summary.split()), description=rest.strip()
    )


def named(call: Call[Any, Any]) -> tuple[str, Kind]:
    """Return the name and kind of the store in the path."""
    params = call.params
    return (params["queue"], "queue") if "queue" in params else (params["channel"], "channel")


def target_of(params: Mapping[str, str], body: Any) -> str:
    """Return the subject of an operation, for the audit log."""
    if isinstance(body, AclChange):
        return ""  # the record of the change names the resource
    if isinstance(body, NewJoin):
        return f"{body.source} -> {body.destination}"
    if (text := params.get("id")) is not None and (pair := join_of(text)) is not None:
        return f"{pair[0]} -> {pair[1]}"
    if (pattern := params.get("pattern") or getattr(body, "pattern", "")) != "":
        return f"{params.get('durable') or body.name} over {pattern}"
    return "/".join(params.values()) or getattr(body, "name", "")


class RouteMatch(NamedTuple):
    """The route of a request, with the parameters in its path."""

    route: Route
    signature: Signature
    params: Mapping[str, str]

    @property
    def store_name(self) -> str:
        """The name of the channel or queue in the path; empty if it has none."""
        name = self.params.get("channel") or self.params.get("queue")
        return destination_name(name) if name else ""


_Form = tuple[bool, ...]
"""Whether each part of a path is fixed; the other parts are parameters."""
_FixedParts = tuple[str, ...]


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self.signatures = {route: signature_of(route) for route in routes}
        self._recent: dict[tuple[str, str], RouteMatch] = {}
        """Matches by method and path, for clients that repeat a request."""
        self._forms: dict[int, dict[_Form, dict[_FixedParts, dict[str, Route]]]] = {}
        """Routes by number of parts, form, fixed parts and method."""
        for route in routes:
            parts = route.path.strip("/").split("/")
            form = tuple(part[0] != "{" for part in parts)
            by_fixed_parts = self._forms.setdefault(len(parts), {}).setdefault(form, {})
            by_method = by_fixed_parts.setdefault(tuple(compress(parts, form)), {})
            by_method.setdefault(route.method, route)

    def find(self, method: str, raw_path: str) -> RouteMatch | frozenset[str]:
        """Return the route of a method and path. If the method is not allowed, return the methods
        of the path; empty if the path does not exist.

        Raises ``InvalidArgument`` if the path is not UTF-8.
        """
        if (recent := self._recent.get((method, raw_path))) is not None:
            return recent
        # Split before the parts are decoded, because a name may contain an encoded slash.
        parts = raw_path.strip("/").split("/")
        methods: set[str] = set()
        # An empty part matches no parameter, because no name is empty.
        forms = self._forms.get(len(parts), {}) if all(parts) else {}
        for form, by_fixed_parts in forms.items():
            by_method = by_fixed_parts.get(tuple(compress(parts, form)))
            if by_method is None:
                continue
            if (route := by_method.get(method)) is not None:
                names = route.path.strip("/").split("/")
                pairs = zip(names, parts, strict=True)
                params = {name[1:-1]: _decoded(part) for name, part in pairs if name[0] == "{"}
                match = RouteMatch(route, self.signatures[route], params)
                if len(raw_path) <= RECENT_PATH_MAX:
                    if len(self._recent) >= RECENT_MAX:
                        self._recent.clear()
                    self._recent[method, raw_path] = match
                return match
            methods |= by_method.keys()
        return frozenset(methods)


def _decoded(part: str) -> str:
    """Decode a part of a path. Raises ``InvalidArgument`` if it is not percent-encoded UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{part[:80]!r} in the path is not percent-encoded UTF-8") from None
