"""The headers of a request, and the W3C trace context in them, which becomes properties of the
published events (SEM E13)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from penstock_core.columns.events.trace_context import (
    TRACE_NAMES,
    TRACE_PARENT,
    TRACE_STATE,
    TraceContext,
)

TRACE_PARENT_CHARACTERS_MAX: Final = 128
"""Maximum length of a ``traceparent``. Version 00 has 55 characters; later ones may have more."""
TRACE_STATE_CHARACTERS_MAX: Final = 512
"""Maximum length of a ``tracestate``; W3C asks for at least this much. Longer ones lose members."""
MEMBERS_MAX: Final = 32
"""Maximum number of members of a ``tracestate``."""
LONG_MEMBER_CHARACTERS: Final = 128
"""Length above which a member is left out first if the ``tracestate`` is too long."""
TRACE_BYTES_MAX: Final = 8 << 20
"""Maximum size in bytes that the context adds to the events of one request. A small request may
have very many events, and its context must not multiply its size."""

_PARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?P<rest>-[\x21-\x7e]*)?"
)
_VALUE: Final = r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_KEY: Final = r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER: Final = re.compile(_KEY + _VALUE)


def headers_of(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request by name, in lower case. If a header is repeated, the first
    value counts; those of the trace context are joined by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in headers and name in TRACE_NAMES:
            headers[name] += f",{value}"
        headers.setdefault(name, value)
    return headers


def trace_context_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context in the headers of a request, by property; empty if the request has
    no valid one."""
    parent = headers.get(TRACE_PARENT)
    if parent is None:
        return {}
    parent = parent.strip()
    match = _PARENT.fullmatch(parent) if len(parent) <= TRACE_PARENT_CHARACTERS_MAX else None
    if match is None or (match["version"] == "00" and match["rest"] is not None):
        return {}
    state = _state_of(headers.get(TRACE_STATE, ""))
    return {TRACE_PARENT: parent, TRACE_STATE: state} if state else {TRACE_PARENT: parent}


def _state_of(text: str) -> str:
    """Return a ``tracestate`` of allowed length; empty if it is malformed."""
    members = [member for part in text.split(",") if (member := part.strip())]
    keys = {member.partition("=")[0] for member in members}
    is_valid = len(keys) == len(members) <= MEMBERS_MAX
    if not is_valid or not all(map(_MEMBER.fullmatch, members)):
        return ""
    if text.strip() == (state := ",".join(members)) and len(state) <= TRACE_STATE_CHARACTERS_MAX:
        return state
    # W3C: long members go first, then members at the end, which are the oldest.
    if len(state) > TRACE_STATE_CHARACTERS_MAX:
        members = [member for member in members if len(member) <= LONG_MEMBER_CHARACTERS]
    while len(state := ",".join(members)) > TRACE_STATE_CHARACTERS_MAX:
        members.pop()
    return state


def bounded(context: TraceContext, count: int) -> dict[str, str]:
    """Return the part of the context that may be added to ``count`` events: without the
    ``tracestate``, or empty, if they are too many."""
    parts: dict[str, str] = {}
    size = 0
    for name, value in context.items():  # the traceparent comes first
        size += count * len(value)
        if size > TRACE_BYTES_MAX:
            break
        parts[name] = value
    return parts
