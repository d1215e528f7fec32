"""AMQP 1.0: clients written for other servers connect unchanged, JMS applications among them.

Proton's engine (:mod:`.engine`) keeps connections, sessions and links as the standard says. This
package maps them to the realm: topics are channels, queues are queues, and subscriptions are
subscriptions or durables. Messages become events in :mod:`.incoming` (in :mod:`.single_message`
when one comes alone), events become messages in :mod:`.outgoing`; the guide's page on AMQP has the
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.frontends.amqp.hub import AmqpHub
    from penstock.frontends.native.listener import NativeListener


def hub_of(listener: NativeListener) -> AmqpHub:
    """The AMQP side of a realm, shared by all its ports. Proton is imported only here, so a realm
    without AMQP does not load it.

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
