"""A message that comes alone: its event is written by a form, for columns cost a lone one as much
as thousands that come together.

Whoever sends one message at a time waits for each answer. Nothing else is different: the event is
the one :mod:`penstock.frontends.amqp.incoming` makes, byte for byte, and what is not plain goes
that way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.columns.ipc import SCHEMA_BYTES_KEPT_MAX, schema_bytes
from penstock.columns.layout import HEADERS, PRIORITY_MAX
from penstock.columns.one_row import OneRow, form_of
from penstock.core.errors import InvalidEvent, RemoteProtocolViolation
from penstock.core.ids import Span
from penstock.core.messages import Digest
from penstock.frontends.amqp.incoming import Row, batch_of, row_of
from penstock.runtime.bodies import Body

KINDS_MAX: Final = 256
"""Of messages, by the names and types of what they have: senders choose both."""

_TTL_MAX: Final = 1 << 62
_ALONE: Final = (Span(0, 1),)


class _Kind(NamedTuple):
    """What all messages that have the same fields have in common."""

    form: OneRow
    schema: bytes
    has_data: bool
    headers: tuple[str, ...]
    """Those of the message, in the order of the columns."""


_kinds: dict[tuple[object, ...], _Kind | None] = {}


def body_of_one(message: bytes, now_ms: int, container: str = "") -> Body | None:
    """The event of a message; None where it has to be made the usual way, be it to say what is
    wrong. ``container`` as with ``incoming.batches_of``."""
    try:
        row = row_of(0, message, now_ms)
    except (RemoteProtocolViolation, InvalidEvent, UnicodeError):
        return None
    header, signature, ttl = row.header, row.signature, row.ttl
    if signature is None or row.deliver_ms is not None or not 0 <= ttl <= _TTL_MAX:
        return None
    if header.priority is not None and not 0 <= header.priority <= PRIORITY_MAX:
        return None
    key = (
        *(header.durable, header.priority is None, not ttl, row.tag is None, not row.data),
        *(not container, *row.headers, None, *signature),
    )
    try:
        kind = _kinds[key]
    except KeyError:
        kind = _learn(key, row, container)
    made = None if kind is None else kind.form.made(_values(kind, row, container))
    if kind is None or made is None:
        return None
    encoded, digest = made
    if ttl or not header.durable:
        digest = Digest(
            count=1,
            size=digest.size,
            largest=digest.largest,
            volatile=() if header.durable else _ALONE,
            ttls=((ttl, _ALONE),) if ttl else (),
        )
    return Body(encoded, None, kind.schema, digest)


def _values(kind: _Kind, row: Row, container: str) -> list[Any]:
    """Those of the columns, in their order."""
    values: list[Any] = []
    if row.tag is not None:
        values.append(row.tag)
    if kind.has_data:
        values.append(row.data)
    if row.ttl:
        values.append(row.ttl)
    if not row.header.durable:
        values.append(0)
    if row.header.priority is not None:
        values.append(row.header.priority)
    headers = row.headers
    values += [headers[name] for name in kind.headers]
    if container:
        values.append(container)
    values += row.properties.values()
    return values


def _learn(key: tuple[object, ...], row: Row, container: str) -> _Kind | None:
    schema = batch_of([row], container).batch.schema
    encoded = schema_bytes(schema)
    if len(encoded) > SCHEMA_BYTES_KEPT_MAX:
        return None
    if len(_kinds) >= KINDS_MAX:
        _kinds.clear()
    found = None
    if (form := form_of(schema)) is not None:
        headers = tuple(name for name in HEADERS if name in row.headers)
        found = _Kind(form, encoded, "data" in schema.names, headers)
    _kinds[key] = found
    return found
