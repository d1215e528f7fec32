"""Protocol Buffers on the command line: messages are printed and read as JSON (SEM P3)."""

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
    """The descriptors in a file; none for an empty path."""
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None


def known_to(store: Channel | Queue) -> Messages | None:
    """A decoder for the messages of a channel or queue; None without descriptors, or without the
    extra ``protobuf``."""
    try:
        messages = store.messages()
    except Unavailable:
        return None
    return messages if messages.types else None


def shown(event: Event, messages: Messages | None) -> Any:
    """The data of an event as a table shows it."""
    message = message_in(event, messages)
    return event.data if message is None else msgspec.json.encode(message).decode()
