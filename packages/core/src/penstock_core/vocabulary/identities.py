"""Types of the numbers that identify channels and subscriptions in a realm.

At run time each is a plain ``int``, so that storage and wire are not affected. The type checker
refuses one type in the place of another, and a plain ``int`` in the place of any of them.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

from penstock_core.bounds import NUMBER_MAX

ChannelId = NewType("ChannelId", int)
"""A channel or queue of this realm. Ids are never reused: a store that is deleted and created again
under the same name gets another id."""
ChannelNumber = Annotated[ChannelId, Meta(ge=0, le=NUMBER_MAX)]
"""The channel or queue of a request, as returned by the request that opened it."""
SubscriptionId = NewType("SubscriptionId", int)
"""A subscription of this realm, of any client. Clients number their subscriptions differently; only
their connection knows those numbers."""
