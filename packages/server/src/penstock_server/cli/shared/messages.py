"""Protocol Buffers on the command line: commands print and read messages as JSON (SEM P3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from penstock_core.columns.documents import message_in
from penstock_core.vocabulary.errors import Unavailable

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Queue
    from penstock_core.columns.events.event import Event
    from penstock_core.columns.protobuf import Messages


def descriptors(path: str) -> bytes:
    """Return the descriptors in a file; empty for an empty path."""
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None


def decoder_of(store: Channel | Queue) -> Messages | None:
    """Return a decoder for the messages of a channel or queue; None if it has no descriptors or
    the extra ``protobuf`` is not installed."""
    try:
        messages = store.messages()
    except Unavailable:
        return None
    return messages if messages.types else None


def shown(event: Event, messages: Messages | None) -> Any:
    """Return the data of an event for a table: decoded to JSON if ``messages`` can."""
    message = message_in(event, messages)
    return event.data if message is None else msgspec.json.encode(message).decode()
