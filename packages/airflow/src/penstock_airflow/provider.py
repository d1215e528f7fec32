"""Description of the provider, and the message queue that it adds to Airflow."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from penstock_airflow.trigger import PenstockTrigger
from penstock_core.vocabulary.errors import InvalidArgument


def get_provider_info() -> dict[str, Any]:
    """Return the description that Airflow reads from the entry point of the distribution."""
    return {
        "package-name": "penstock-airflow",
        "name": "Penstock",
        "description": "Channels and queues of Penstock start runs of DAGs.",
        "queues": [f"{__name__}.{PenstockMessageQueueProvider.__name__}"],
    }


class PenstockMessageQueueProvider(BaseMessageQueueProvider):
    """The message queue for ``MessageQueueTrigger(scheme="penstock", ...)``, whose other arguments
    are those of :class:`PenstockTrigger`."""

    scheme = "penstock"

    def queue_matches(self, queue: str) -> bool:
        """Return whether a URI of the deprecated argument ``queue`` is one of a realm."""
        return queue.startswith(("penstock://", "penstocks://"))

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the class of the trigger."""
        return PenstockTrigger

    def trigger_kwargs(self, queue: str, **_others: Any) -> dict[str, Any]:
        """Return the arguments in a URI of the deprecated argument ``queue``:
        ``penstock://host:9000/work`` for a queue, ``penstock://host:9000/orders?durable=billing``
        for a durable. Raises ``InvalidArgument``."""
        address, _, query = queue.partition("?")
        scheme, _, after_scheme = address.partition("://")
        hosts, _, name = after_scheme.partition("/")
        parameters = dict(parse_qsl(query))
        durable = parameters.pop("durable", None)
        if not name or parameters:
            raise InvalidArgument(
                "the URI of a queue looks like penstock://host:9000/work, that of a durable like "
                "penstock://host:9000/orders?durable=billing; give anything else with "
                'MessageQueueTrigger(scheme="penstock", url=...)'
            )
        source = {"channel": unquote(name), "durable": durable}
        url = f"{scheme}://{hosts}"
        return {"url": url, **(source if durable else {"queue_name": unquote(name)})}
