"""Channels and queues as documents, as ``penstock channel show --format json`` prints them."""

from __future__ import annotations

import msgspec

from penstock.api.channels import ChannelInfo
from penstock.frontends.http.shapes import ChannelAnswer
from penstock.runtime.realm import RunningRealm
from penstock.runtime.subscriptions.documents import channel_document


def channel_answer(realm: RunningRealm, info: ChannelInfo) -> ChannelAnswer:
    """The document of a channel or queue, with the age of its oldest stored event."""
    store = realm.view.named(info.name)
    oldest = None if store is None else store.oldest_ms(realm.clock.now_us())
    return msgspec.convert({**channel_document(info), "oldest_event_ms": oldest}, ChannelAnswer)
