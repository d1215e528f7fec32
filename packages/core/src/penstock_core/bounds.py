"""Bounds of values from outside: one table for all front ends.

The types are used in messages: msgspec checks the bounds while it decodes, so later code never sees
a number that no event, count or size can have. Stored values are not checked again.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

EVENT_ID_MAX: Final = (1 << 63) - 2
"""The largest event id: the id after it still fits 64 bits."""
NEXT_ID_MAX: Final = 1 << 61
"""The largest id at which a channel may begin or be imported; enough ids remain above it."""
NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number of a channel, subscription, schema, sequence or request, and the largest
count: the maximum of a signed 64-bit integer."""
TIME_US_MAX: Final = 1 << 62
"""The latest time, in microseconds since 1970."""
TTL_MS_MAX: Final = 1 << 50
"""The longest TTL of a channel or an event, in milliseconds: some 35,000 years. The time at which
it ends, in microseconds since 1970, stays below ``TIME_US_MAX``."""
NAME_CHARACTERS_MAX: Final = 255
"""Maximum number of characters of a name or id: of channels, durables, users, sessions, producers,
stages, transactions."""
GIVEN_NAME_CHARACTERS_MAX: Final = 16 * NAME_CHARACTERS_MAX
"""Maximum number of characters of the name of a channel, queue or durable as a client writes it.
The canonical form may be shorter, and the rule for names reports what is wrong with it (SEM C2)."""
SELECTOR_CHARACTERS_MAX: Final = 65_536
"""Maximum number of characters of a selector."""
DURABLE_SELECTORS_CHARACTERS_MAX: Final = 4 << 20
"""Maximum number of characters of the selectors of all durables of a channel together, which stay
in memory."""
SHORT_SELECTOR_CHARACTERS: Final = 400
"""A durable with a selector of up to this many characters is not refused because of the selectors
of other durables. The default maximum of durables per channel, each with such a selector, stays
within :data:`DURABLE_SELECTORS_CHARACTERS_MAX`."""
SELECTORS_WORK_MAX: Final = 10_000
"""Maximum number of comparisons, calculations and wildcards in the selectors of durables, readers
and joins that are applied to events published on one channel."""
MERGED_SELECTORS_WORK_MAX: Final = 256
""":data:`SELECTORS_WORK_MAX` for channels that merge. The limit is lower, because a merged state
may change before it is stored, and is examined again after the change."""
STAMPED_PREDICATES_MAX: Final = 256
"""Maximum number of different comparisons of values that the realm adds to events (ids, times,
priorities), in the selectors applied to events published on one channel. They are evaluated in the
turn that stores the events, and no other client is served during that turn."""
PROPERTY_NAME_CHARACTERS_MAX: Final = 255
"""Maximum number of characters of a property name. The limit exists because the names in a batch
are not part of its events, so they do not count against a limit of bytes."""
TEXT_CHARACTERS_MAX: Final = 65_536
"""Maximum number of characters of a text that is not a name: a reason, a token."""
HEADER_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes of a request's header, without its body."""
SPANS_MAX: Final = 50_000
"""Maximum number of ranges of ids in one request; clients send more ranges in several requests."""
BATCHES_MAX: Final = 100_000
"""Maximum number of Arrow batches in the body of one request."""
REDELIVERIES_MAX: Final = 1_000_000
"""The highest limit of deliveries that a queue or durable may have."""
ENTRIES_MAX: Final = 10_000
"""Maximum number of channels, stages, members or rights that one request may name."""
SCHEMAS_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes of all schemas that one connection has announced."""

EventId = Annotated[int, Meta(ge=0, le=EVENT_ID_MAX)]
"""The id of an event."""
EndId = Annotated[int, Meta(ge=0, le=EVENT_ID_MAX + 1)]
"""The end of a range of ids: its last id plus one."""
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""A number of a channel, subscription, schema, sequence or request."""
Count = Number
"""A number of items, or a duration in milliseconds."""
TimeUs = Annotated[int, Meta(ge=-TIME_US_MAX, le=TIME_US_MAX)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
GivenName = Annotated[str, Meta(max_length=GIVEN_NAME_CHARACTERS_MAX)]
SelectorText = Annotated[str, Meta(max_length=SELECTOR_CHARACTERS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
LastId = Annotated[int, Meta(ge=-1, le=EVENT_ID_MAX)]
"""The last id of a range; -1 stands for the last id of the channel."""
Window = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
"""The window that a client requests, in events; the type of the durable decides which windows are
allowed."""
Subject = Annotated[str, Meta(max_length=3 * NAME_CHARACTERS_MAX)]
"""The users that an entry of an access control list applies to: ``user@host``, or
``group:name``."""
