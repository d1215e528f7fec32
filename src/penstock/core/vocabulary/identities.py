"""Types of the numbers by which a realm knows its channels and subscriptions.

At run time each is a plain ``int``, so what is stored and sent is the same as without them. The
type checker refuses one where another is wanted, or an ``int`` that is only a number.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

from penstock.core.bounds import NUMBER_MAX

ChannelId = NewType("ChannelId", int)
"""A channel or queue of this realm. Never given again: what is deleted and created anew under its
name has another one."""
ChannelNumber = Annotated[ChannelId, Meta(ge=0, le=NUMBER_MAX)]
"""The channel or queue a request is about, as the answer that opened it said."""
SubscriptionId = NewType("SubscriptionId", int)
"""A subscription of this realm, of any client. The numbers that clients give to their own
subscriptions are others, and only their connection knows them."""
