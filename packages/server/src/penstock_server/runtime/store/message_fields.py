"""Access of selectors to the fields of Protobuf messages in a channel's events (SEM P1)."""

from __future__ import annotations

from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.protobuf import MessageFields, descriptors_of, fields_of
from penstock_core.realm.directory import Directory


def messages_of(channel: ChannelMachine) -> MessageFields | None:
    """Return the fields of the channel's messages; None without descriptors."""
    return fields_of(channel.state.definition.descriptors)


def check_all(directory: Directory) -> None:
    """Raise ``Unavailable`` or ``InvalidDescriptor`` if the Protobuf descriptors of a stored
    channel cannot be used on this machine. Called when the realm opens, so that no later publish
    fails for this reason."""
    for channel in directory.channels.values():
        if serialized := channel.state.definition.descriptors:
            descriptors_of(serialized)
