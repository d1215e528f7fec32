"""Types of the numbers that identify channels and subscriptions in a realm.

At run time each is a plain ``int``, so that storage and wire are not affected. The type checker
refuses one in the place of another, and a plain ``int`` in the place of any.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

from penstock_core.bounds import NUMBER_MAX

ChannelId = NewType("ChannelId", int)
"""A channel or queue of this realm. Never given again: what is deleted and created anew under its
name has another one."""
ChannelNumber = Annotated[ChannelId, Meta(ge=0, le=NUMBER_MAX)]
"""The channel or queue a request is about, as the answer that opened it said."""
SubscriptionId = NewType("SubscriptionId", int)
"""A subscription of this realm, of any client. The numbers that clients give to their own
subscriptions are others, and only their connection knows them."""
