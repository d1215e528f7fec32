"""Protocol Buffers on the command line: messages are shown and taken as JSON (SEM P3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from penstock.core.errors import InvalidEvent, Unavailable

if TYPE_CHECKING:
    from penstock.client.sync import Channel, Queue
    from penstock.columns.event import Event
    from penstock.columns.protobuf import Messages


def descriptors(path: str) -> bytes:
    """The descriptors in a file; an empty name is none."""
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None


def types_of(serialized: bytes) -> list[str] | None:
    """The message types in descriptors; None where Protocol Buffers are not installed."""
    if not serialized:
        return []
    from penstock.columns.protobuf import descriptors_of

    try:
        return list(descriptors_of(serialized).types)
    except Unavailable:
        return None


def known_to(store: Channel | Queue) -> Messages | None:
    """What reads the messages of a channel or queue; None without descriptors, or without what
    it takes to read them."""
    try:
        messages = store.messages()
    except Unavailable:
        return None
    return messages if messages.types else None


def message_in(event: Event, messages: Messages | None) -> dict[str, Any] | None:
    """The event's message; None when it has none that can be read: its data is shown then."""
    if messages is None or not messages.has(event):
        return None
    try:
        return messages.decode(event)
    except InvalidEvent:
        return None


def shown(event: Event, messages: Messages | None) -> Any:
    """What a table has for the event's data."""
    message = message_in(event, messages)
    return event.data if message is None else msgspec.json.encode(message).decode()
