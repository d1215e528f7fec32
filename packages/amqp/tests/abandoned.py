"""Ways to abandon a connection."""

from __future__ import annotations

from packages.amqp.tests.frames import (
    CLOSE,
    COORDINATOR,
    DECLARE,
    NULL,
    Raw,
    frame,
    frame_of,
    message,
    opened,
    performative,
    receiver,
    sender,
    terminus,
    transfer,
)
from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import Symbol, UInt, encode_symbols

WORK = terminus(0x29, "work", capability="queue")
FROM_WORK = terminus(0x28, "work", capability="queue")
KEPT = terminus(0x28, "news", UInt(2), Symbol("never"), capability="topic")
NEWS = terminus(0x28, "news", capability="topic")
TEMPORARY = terminus(0x29, None, UInt(0), Symbol("link-detach"), UInt(0), True, None,
                     capability="temporary-queue")  # fmt: skip
TRANSACTIONS = Raw(performative(COORDINATOR, encode_symbols(["amqp:local-transactions"])))
LINKS = (
    opened("hostile")
    + receiver("work", 0, FROM_WORK, credit=1)
    + receiver("kept", 1, KEPT)
    + receiver("news", 2, NEWS)
    + sender("temporary", 3, TEMPORARY)
    + sender("transactions", 4, TRANSACTIONS)
    + sender("sends", 5, WORK)
)
HALF_SENT = transfer(5, 0, message(body="x" * 10_000)[:5_000], more=True)
DECLARATION = transfer(4, 1, section(0x77, performative(DECLARE, NULL)))
DECLARED = b"\x00\x53\x33"
ENDS = {
    "hangs up": b"",
    "no frame": b"\x00\x00\x00\x07\x02\x00\x00\x00",
    "no performative": frame(performative(0x77)),
    "a frame that is too large": b"\x7f\xff\xff\xff\x02\x00\x00\x00",
    "a transfer to nowhere": transfer(77, 2, message()) + frame_of(CLOSE),
    "a channel of no session": frame(performative(0x14), channel=9),
    "an address that is no text": sender("bad", 6, terminus(0x29, Raw(b"\xa1\x02\xff\xfe"))),
}
