"""The Protobuf messages in a channel's events, as its selectors see them (SEM P1)."""

from __future__ import annotations

from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.protobuf import MessageFields, descriptors_of, fields_of
from penstock_core.realm.directory import Directory


def messages_of(channel: ChannelMachine) -> MessageFields | None:
    """Return the fields of the channel's messages; None without descriptors."""
    return fields_of(channel.state.definition.descriptors)


def check_all(directory: Directory) -> None:
    """Raise ``Unavailable`` or ``InvalidDescriptor`` if descriptors of a stored channel cannot be
    used on this machine. Checked when the realm opens, so that no later publish fails on it."""
    for channel in directory.channels.values():
        if serialized := channel.state.definition.descriptors:
            descriptors_of(serialized)
