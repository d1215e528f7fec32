"""JSON documents that describe channels and queues, for the command line and HTTP."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from penstock_core.api.channels import ChannelInfo
from penstock_core.channel.conservation import conservation
from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS
from penstock_core.vocabulary.errors import Unavailable
from penstock_core.vocabulary.reach import with_explicit_reach


def channel_document(info: ChannelInfo) -> dict[str, Any]:
    """Return all attributes, counters and figures of a channel, including default values."""
    definition = asdict(with_explicit_reach(info.definition))
    if info.definition.backoff is not None:
        definition["backoff"] = asdict(info.definition.backoff)
    definition["message_types"] = types_of(definition.pop("descriptors"))
    return {
        **asdict(info),
        "definition": {**definition, "storage": asdict(info.definition.storage)},
        "deprecated": info.definition.type in DEPRECATED_CHANNELS,
        "counters": asdict(info.counters),
        "storage": asdict(info.storage),
        "conservation": conservation(info.counters, live=info.events, overdue=info.overdue),
    }


def types_of(serialized: bytes) -> list[str] | None:
    """Return the names of the Protobuf message types in ``serialized`` descriptors; None if
    Protocol Buffers are not installed."""
    if not serialized:
        return []
    from penstock_core.columns.protobuf import descriptors_of

    try:
        return list(descriptors_of(serialized).types)
    except Unavailable:
        return None
