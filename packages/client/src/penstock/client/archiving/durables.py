"""The durables by which programs copy channels."""

from __future__ import annotations

from penstock.client.sync.sync import Channel, Durable
from penstock_core.vocabulary.errors import NameDoesNotExist


def existing_durable(channel: Channel, name: str) -> Durable:
    """Return a durable of a channel. Raises ``NameDoesNotExist``, which shows how to create it."""
    try:
        return channel.durables.get(name)
    except NameDoesNotExist as error:
        raise NameDoesNotExist(
            f"channel {channel.name} has no durable {name!r}; create it first, for example: "
            f"penstock durable create {channel.name} {name} --type serial"
        ) from error
