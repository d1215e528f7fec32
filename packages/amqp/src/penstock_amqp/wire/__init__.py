"""The AMQP 1.0 codec, sans-IO: the type system, the sections of a message, SASL frames.

Apache Qpid Proton handles connections, sessions and links (``penstock_amqp.engine``). This package
contains the parts that must be faster than Proton, or that Proton does not offer to servers.
"""

from __future__ import annotations

from typing import Final

FIRST_BYTES: Final = b"AMQP"
"""The first bytes of every connection."""
