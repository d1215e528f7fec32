"""Routes without an endpoint function, each of which executes one realm request.

The fields of the request are filled by name from the path and from the body or the query. The
realm's answer becomes the route's answer. A route that does more needs an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import structs

from penstock_core.api.requests import Request
from penstock_core.bounds import EventId
from penstock_core.vocabulary.argument_errors import explain
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.start_positions import AnyStart
from penstock_server.frontends.http.finding import cursor_of, start_of
from penstock_server.frontends.http.routing import (
    Call,
    Examples,
    Route,
    Signature,
    described,
    named,
)
from penstock_server.frontends.http.shapes import Answer, Done, NoQuery, Page, answer_from

QUERY_BYTES_MAX: Final = 128 << 10
"""Largest size in bytes of a query string."""
Order = Literal["name", "place"]
Show = Callable[[Call[Any, Any], Any], Any]
"""Builds the answer of a route from the call and the answer of the realm."""
_PARSERS: Final[Mapping[Any, Callable[[str], Any]]] = MappingProxyType(
    {AnyStart: start_of, EventId: cursor_of}
)
"""Parsers of fields that arrive as text, by the type of the field."""


def bound(
    name: str,
    method: str,
    path: str,
    *,
    asks: type[Request[Any]],
    text: str,
    query: Any = NoQuery,
    body: Any = None,
    answer: Any = Done,
    paged_by: Order | None = None,
    show: Show | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
    constants: Mapping[str, Any] = MappingProxyType({}),
    audited: Sequence[str] = (),
    status: int = 200,
    only_asks: bool = False,
    examples: Examples | None = None,
) -> Route:
    """Return a route that executes a request of type ``asks``; ``text`` is its description.

    ``names`` maps fields of the request to their names in HTTP if these differ. ``constants`` has
    values of fields that clients cannot set. ``audited`` names the fields to include in audit
    records. ``paged_by`` sets whether the cursor of a page is a name or a position; None puts all
    items on one page. ``show`` builds the answer, or an item of the page, from the realm's answer;
    None leaves the realm's answer unchanged.
    """
    signature = described(text, query=query, body=body, answer=answer)
    ask = _Ask(asks, signature, path, names=names, constants=constants, audited=audited)
    reply = _reply_rule(answer, paged_by, show)

    async def endpoint(call: Call[Any, Any]) -> Any:
        return reply(call, await ask.execute(call))

    return Route(
        name,
        method,
        path,
        asks=asks,
        endpoint=endpoint,
        status=status,
        only_asks=only_asks,
        examples=examples,
        signature=signature,
    )


class _Ask:
    """Builds the request of a route from a call and executes it."""

    def __init__(
        self,
        asks: type[Request[Any]],
        signature: Signature,
        path: str,
        *,
        names: Mapping[str, str],
        constants: Mapping[str, Any],
        audited: Sequence[str],
    ) -> None:
        self._asks = asks
        self._audited = audited
        self._constants = constants
        self._has_body = signature.body is not None
        in_path = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        is_on_store = in_path[:1] in (["channel"], ["queue"])
        self._needs_channel = is_on_store and "channel" in asks.__struct_fields__
        """Whether the realm request has a field for the id of the store in the path."""
        self._needs_kind = is_on_store and "kind" in asks.__struct_fields__
        self._needs_kind &= not self._needs_channel
        arguments = signature.body or signature.query
        self._parsers: dict[str, Callable[[str], Any]] = {}
        """Functions that convert values from HTTP, by field of the realm request."""
        self._from_arguments: dict[str, str] = {}
        """Names of fields in the body or query, by field of the realm request."""
        self._from_path: dict[str, str] = {}
        """Names of path parameters, by field of the realm request."""
        for field in structs.fields(asks):
            source = names.get(field.name, field.name)
            self._parsers[field.name] = _PARSERS.get(field.type, _unchanged)
            if hasattr(arguments, source):  # a field, or a property computed from fields
                self._from_arguments[field.name] = source
            elif field.name == "channel" and self._needs_channel:
                continue
            elif source in in_path:
                self._from_path[field.name] = source
            elif field.name == "name":  # the last part of the path is the name of the object
                self._from_path[field.name] = in_path[-1]

    async def execute(self, call: Call[Any, Any]) -> Any:
        arguments = call.body if self._has_body else call.query
        values = {
            **self._constants,
            **{
                field: self._parsers[field](getattr(arguments, source))
                for field, source in self._from_arguments.items()
            },
        }
        if self._needs_channel:
            return await call.ask_here(
                self._asks,
                lambda now: self._asks(**values, **self._named(call), channel=now.channel),
            )
        if self._needs_kind:
            values["kind"] = named(call)[1]
        detail = {field: values[field] for field in self._audited}
        return await call.ask(self._asks(**values, **self._named(call)), **detail)

    def _named(self, call: Call[Any, Any]) -> dict[str, Any]:
        """Return the values of the fields that are in the path."""
        return {
            field: self._parsers[field](call.params[source])
            for field, source in self._from_path.items()
        }


def _unchanged(value: Any) -> Any:
    return value


def _reply_rule(answer: Any, paged_by: Order | None, show: Show | None) -> Show:
    """Return the function that builds an answer of type ``answer`` from the realm's answer."""
    if get_origin(answer) is Page:
        return _PAGES[paged_by](_reply_rule(get_args(answer)[0], None, show))
    if show is not None:
        return show
    if answer is Done:
        return lambda call, result: Done()
    if issubclass(answer, Answer):
        return lambda call, result: answer_from(result, answer)
    return lambda call, result: result


def _page_by_name(item: Show) -> Show:
    """Return a function that builds a page whose cursor is the name of its last item."""

    def page(call: Call[Any, Any], objects: Sequence[Any]) -> Page[Any]:
        limit, after = call.query.limit, call.query.after
        items_after = sorted((obj for obj in objects if obj.name > after), key=lambda obj: obj.name)
        next_ = items_after[limit - 1].name if len(items_after) > limit else None
        return Page(items=[item(call, obj) for obj in items_after[:limit]], next=next_)

    return page


def _page_by_index(item: Show) -> Show:
    """Return a function that builds a page whose cursor is the position of the next item."""

    def page(call: Call[Any, Any], objects: Sequence[Any]) -> Page[Any]:
        begin = cursor_of(call.query.after) or 0
        end = begin + call.query.limit
        next_ = str(end) if end < len(objects) else None
        return Page(items=[item(call, obj) for obj in objects[begin:end]], next=next_)

    return page


def _whole_page(item: Show) -> Show:
    """Return a function that shows all objects on a single page."""
    return lambda call, objects: Page(items=[item(call, obj) for obj in objects])


_PAGES: Final[Mapping[Order | None, Callable[[Show], Show]]] = MappingProxyType(
    {"name": _page_by_name, "place": _page_by_index, None: _whole_page}
)


def query_of(query_string: bytes, kind: Any) -> Any:
    """Return the query parameters of a request as a value of the type ``kind``.

    Raises ``InvalidArgument``.
    """
    if len(query_string) > QUERY_BYTES_MAX:
        raise InvalidArgument(
            f"the query has {len(query_string)} bytes; at most {QUERY_BYTES_MAX} are allowed"
        )
    try:
        pairs = (
            parse_qsl(
                query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
            )
            if query_string
            else []
        )
    except ValueError as error:
        raise InvalidArgument(f"the query cannot be read: {error}") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidArgument("the query gives a parameter twice")
    try:
        return msgspec.convert(dict(pairs), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(explain(error, dict(pairs), kind=kind, whole="the query")) from None
