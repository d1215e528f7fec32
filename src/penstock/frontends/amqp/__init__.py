"""AMQP 1.0: software that no one here wrote connects unchanged, JMS applications among it.

Proton's engine keeps connections, sessions and links by the standard (:mod:`.engine`); what they
mean in a realm is said here: topics are channels, queues are queues, subscriptions are
subscriptions and durables. Messages become events and events messages in :mod:`.incoming` (a lone
one in :mod:`.single_message`) and :mod:`.outgoing`; the guide's page on AMQP is their table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.frontends.amqp.hub import AmqpHub
    from penstock.frontends.native.listener import NativeListener


def hub_of(listener: NativeListener) -> AmqpHub:
    """What serves AMQP, the same for all ports of a realm; nothing of it is imported where nobody
    asks for it.

    Raises ``InvalidArgument`` where Proton is not installed.
    """
    try:
        from penstock.frontends.amqp.hub import AmqpHub
    except ModuleNotFoundError as error:
        if error.name not in ("proton", "cproton", "cproton_ffi"):
            raise
        raise InvalidArgument(
            "AMQP needs Apache Qpid Proton, which is not installed here: pip install "
            "'penstock-realm[amqp]' (it is built from source, with a C compiler)"
        ) from error
    if not isinstance(listener.amqp_hub, AmqpHub):
        listener.amqp_hub = AmqpHub(listener)
    return listener.amqp_hub
