"""A kombu channel on a session with a realm."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from queue import Empty
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from penstock import NameDoesNotExist, PenstockError, Queue
from penstock.client.handles.attributes import QueueAttributes
from penstock_celery.delivery import FanoutSource, QueueSource, UnsettledMessages
from penstock_celery.intake import ArrivalSignal, Intake
from penstock_celery.messages import event_of, message_of
from penstock_celery.registry import Binding
from penstock_core.vocabulary.definitions import Definition

if TYPE_CHECKING:
    from penstock_celery.transport import Transport

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""Seconds between two checks whether a consumed queue has messages of a new priority."""
FETCHED_MAX = 100
"""Largest number of events that one request fetches for a consumer."""
IDLE_S = 60.0
"""Longest time without a consumer, in seconds, for a queue that is deleted with its client. The
argument ``x-expires`` overrides it. Its unit is milliseconds."""
_FANOUT = "fanout"
_COPIED = {*QueueAttributes.__annotations__} & {*Definition.__struct_fields__}
"""Attributes that the realm's queues for the priorities of a kombu queue have in common."""


class _Consumption:
    """The consumption of one kombu queue: for each priority, the events that have arrived."""

    def __init__(self) -> None:
        self.intakes: dict[int, Intake] = {}
        """The arrived events of each priority, with their source."""
        self.refreshed_s = float("-inf")
        """Time of ``perf_counter`` at which the priorities of the queue were read last."""


class RealmChannel(virtual.Channel):
    """Publishes to queues and exchanges of the realm and consumes from them.

    A kombu queue is stored as one queue of the realm, and one more for each priority above 0 that
    its messages have. If a queue that is deleted with its client is bound to a fanout exchange, it
    becomes a subscription to the channel of the exchange instead.
    """

    QoS = UnsettledMessages
    connection: Transport
    supports_fanout = True
    do_restore = False
    """The realm returns unacknowledged messages when a reader closes."""
    body_encoding = None
    """Bodies are the data of events, which may be any bytes."""
    visibility_timeout: float | str | None = None
    """Longest time between the delivery and the acknowledgement of a message; None means no
    limit while the consumer is connected."""
    broker_eta = True
    """Whether the realm holds tasks with an ETA until that time."""
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "visibility_timeout",
        "broker_eta",
    )

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.arrivals: ArrivalSignal = connection.arrivals
        self._session = connection.session
        self._names = connection.names
        self._registry = connection.registry
        self._handles: dict[str, Queue] = {}
        """Queues of the realm by name."""
        self._consumptions: dict[str, _Consumption] = {}
        self._fanouts: dict[str, str] = {}
        """Name of the fanout exchange of each queue that is a subscription to its channel."""
        self._ending: set[str] = set()
        """Queues that are deleted when this channel cancels its last consumer of them."""
        self._no_ack_queues: set[str] = set()
        """Queues whose messages count as acknowledged when they are delivered."""

    # --- declaring -----------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        passive: bool = False,
        **kwargs: Any,
    ) -> None:
        """Declare an exchange, for all clients of the realm. Raises ``NotEquivalentError`` if it
        has another type."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        declared = self._registry.exchange_type(name)
        if passive and declared is not None:
            return
        if declared not in (None, kind):
            raise virtual.NotEquivalentError(
                f"exchange {name!r} is declared as {kind}, but it has the type {declared}"
            )
        super().exchange_declare(name, kind, passive=passive, **kwargs)
        self._registry.add_exchange(name, kind)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return the rules of an exchange, which another client may have declared."""
        if exchange in self.state.exchanges:
            return super().typeof(exchange, default)
        return self.exchange_types[self._registry.exchange_type(exchange) or default]

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Create a kombu queue with the declared arguments, unless it exists."""
        if queue in self._fanouts:
            return
        arguments = kwargs.get("arguments") or {}
        is_ending = bool(kwargs.get("auto_delete") or kwargs.get("exclusive"))
        if is_ending:
            self._delete_overdue()
            self._ending.add(queue)
        if self._has_queue(queue):
            return
        self._create(queue, 0, _attributes(arguments, is_stored=kwargs.get("durable", True)))
        if is_ending:
            self._registry.add_ending(queue, arguments.get("x-expires", IDLE_S * 1_000) / 1_000)

    def _create(self, queue: str, priority: int, attributes: Mapping[str, Any]) -> Queue:
        """Create the realm's queue for messages of a priority, unless it exists; return it."""
        name = self._names.queue(queue, priority)
        handle = self._session.queues.create(name, if_missing=True, **attributes)
        self._handles[name] = handle
        return handle

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        """Return whether a kombu queue exists."""
        if queue in self._fanouts:
            return True
        with contextlib.suppress(NameDoesNotExist):
            self._handles[self._names.queue(queue)] = self._session.queues.get(
                self._names.queue(queue)
            )
            return True
        return False

    def _delete_overdue(self) -> None:
        """Delete queues that should have been deleted by a client that has ended."""
        for queue in self._registry.overdue():
            with contextlib.suppress(NameDoesNotExist):
                if self._session.queues.get(self._names.queue(queue)).info().readers:
                    continue
            self._delete(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange, for all clients of the realm."""
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange)
        if kind.type == _FANOUT and queue in self._ending:
            self._subscribe(queue, exchange)
            return
        self._registry.bind(exchange, kind.prepare_bind(queue, exchange, routing_key, arguments))

    def _subscribe(self, queue: str, exchange: str) -> None:
        """Replace a queue by a subscription to the exchange's channel, from now on."""
        if queue in self._fanouts:
            return
        self._delete(queue)
        channel = self._session.channels.create(
            self._names.fanout(exchange), if_missing=True, type="transient"
        )
        source = FanoutSource(channel.subscribe())
        consumption = self._consumptions[queue] = _Consumption()
        consumption.intakes[0] = Intake(source, self.arrivals, is_shared=False)
        self._fanouts[queue] = exchange
        self._ending.add(queue)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remove a binding, for all clients of the realm."""
        exchange = exchange or "amq.direct"
        if self._fanouts.get(queue) == exchange:
            self._delete(queue)
            return
        kind = self.typeof(exchange)
        self._registry.unbind(exchange, kind.prepare_bind(queue, exchange, routing_key, arguments))

    def get_table(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange that clients of the realm have declared."""
        return self._registry.bindings(exchange)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings."""
        self._registry.delete_exchange(exchange)
        with contextlib.suppress(NameDoesNotExist):
            self._session.channels.delete(self._names.fanout(exchange))
        self.state.exchanges.pop(exchange, None)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its messages and bindings."""
        if (if_empty and self._size(queue)) or (if_unused and self._is_used(queue)):
            return
        self._delete(queue)

    def _is_used(self, queue: str) -> bool:
        """Return whether a queue has consumers, of any client."""
        return any(handle.info().readers for handle in self._stores(queue))

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete a queue with its messages and bindings, and end its consumption here."""
        self._end_consumption(queue)
        self._ending.discard(queue)
        if self._fanouts.pop(queue, None) is not None:
            return
        for priority in (*self._registry.priorities(queue), 0):
            name = self._names.queue(queue, priority)
            self._handles.pop(name, None)
            with contextlib.suppress(NameDoesNotExist):
                self._session.queues.delete(name)
        self._registry.forget(queue)

    # --- publishing ----------------------------------------------------------------------

    def _put(self, queue: str, message: Mapping[str, Any], **kwargs: Any) -> None:
        """Put a message on a queue. Return once the realm has stored it. As with AMQP, a message
        for a queue that does not exist is dropped."""
        priority = self._get_message_priority(message)
        attributes = event_of(message, priority, holds_eta=self.broker_eta)
        try:
            self._store(queue, priority).push(**attributes)
        except NameDoesNotExist:
            # The queue was deleted, and perhaps created again, since it was last used.
            self._handles.pop(self._names.queue(queue, priority), None)
            try:
                self._store(queue, priority).push(**attributes)
            except NameDoesNotExist:
                logger.warning("dropped a message: queue %r does not exist", queue)
                self._registry.forget(queue)

    def _store(self, queue: str, priority: int) -> Queue:
        """Return the realm's queue for messages of a priority. Raises ``NameDoesNotExist`` if the
        kombu queue does not exist."""
        name = self._names.queue(queue, priority)
        handle = self._handles.get(name)
        if handle is not None:
            return handle
        plain = self._session.queues.get(self._names.queue(queue))
        if not priority:
            self._handles[name] = plain
            return plain
        definition = plain.info().definition
        handle = self._create(queue, priority, _like(definition))
        self._registry.add_priority(queue, priority)
        return handle

    def _put_fanout(
        self, exchange: str, message: Mapping[str, Any], routing_key: str, **kwargs: Any
    ) -> None:
        """Publish a message to a fanout exchange: on its channel, and to each bound queue."""
        attributes = event_of(message, self._get_message_priority(message), holds_eta=False)
        with contextlib.suppress(NameDoesNotExist):  # no consumer was ever bound
            self._session.channels.get(self._names.fanout(exchange)).publish(**attributes)
        for _, _, queue in self._registry.bindings(exchange):
            self._put(queue, message)

    # --- consuming -----------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Consume from a queue. With ``no_ack``, messages count as acknowledged when they are
        delivered."""
        if no_ack:
            self._no_ack_queues.add(queue)
        self._refresh(queue, is_due=True)
        for intake in self._consumptions[queue].intakes.values():
            intake.is_active = True
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer. Messages that it has not acknowledged stay with it until the channel
        closes."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        self._no_ack_queues.discard(queue)
        if queue in self._ending:
            self._delete(queue)
        elif queue in self._consumptions:
            for intake in self._consumptions[queue].intakes.values():
                intake.is_active = False
                intake.give_back()

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message of a queue, of the highest priority that has one. Raises
        ``Empty`` if no message has arrived."""
        self._refresh(queue)
        count = self._fetched_max(queue)
        for _, intake in sorted(self._consumptions[queue].intakes.items(), reverse=True):
            event = intake.take(count)
            if event is None:
                continue
            message = message_of(event)
            if queue in self._no_ack_queues:
                intake.source.acknowledge(event)
            else:
                self.qos.hold(message["properties"]["delivery_tag"], intake.source, event)
            return message
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message of a queue; None if it is empty."""
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack and queue not in self._no_ack_queues:
            self.qos.ack(message.delivery_tag)
        return message

    def _fetched_max(self, queue: str) -> int:
        """Return the largest number of events that one request may fetch for a queue: the number
        of events that the prefetch count still allows, and 1 for a single :meth:`basic_get`."""
        if queue not in self._active_queues:
            return 1
        allowed: int | None = self.qos.can_consume_max_estimate()
        if allowed is None:  # no prefetch count
            return FETCHED_MAX
        for consumption in self._consumptions.values():
            allowed -= sum(intake.arrived for intake in consumption.intakes.values())
        return min(max(allowed, 1), FETCHED_MAX)

    def _refresh(self, queue: str, *, is_due: bool = False) -> None:
        """Open readers for the priorities of a queue that have no reader yet. Does nothing if the
        last check is less than ``REFRESH_S`` seconds old, unless ``is_due``."""
        consumption = self._consumptions.setdefault(queue, _Consumption())
        now_s = perf_counter()
        is_due = is_due or now_s - consumption.refreshed_s >= REFRESH_S
        if queue in self._fanouts or not is_due:
            return
        for priority in (0, *self._registry.priorities(queue)):
            if priority not in consumption.intakes:
                source = QueueSource(self._store(queue, priority), self.visibility_timeout)
                consumption.intakes[priority] = Intake(source, self.arrivals, is_shared=True)
        consumption.refreshed_s = now_s

    def start_waiting(self) -> None:
        """Wait for messages of the consumed queues in other threads. If the prefetch count is
        reached, give messages that have arrived back to their queues instead."""
        for queue in set(self._active_queues):
            for intake in self._consumptions[queue].intakes.values():
                if self.qos.can_consume():
                    intake.start_waiting()
                else:
                    intake.give_back()

    def _end_consumption(self, queue: str) -> None:
        """Close the readers of a queue, if this channel consumes it."""
        consumption = self._consumptions.pop(queue, None)
        if consumption is not None:
            for intake in consumption.intakes.values():
                intake.close()

    def close(self) -> None:
        """Cancel all consumers, and return unacknowledged messages to their queues."""
        if self.closed:
            return
        with contextlib.suppress(PenstockError):  # the connection may be lost
            for consumer_tag in list(self._consumers):
                self.basic_cancel(consumer_tag)
            for queue in [*self._consumptions]:
                self._end_consumption(queue)
        super().close()

    # --- inspecting ----------------------------------------------------------------------

    def _stores(self, queue: str) -> list[Queue]:
        """Return the realm's queues of a kombu queue that exist."""
        stores = []
        for priority in (0, *self._registry.priorities(queue)):
            with contextlib.suppress(NameDoesNotExist):
                stores.append(self._session.queues.get(self._names.queue(queue, priority)))
        return stores

    def _size(self, queue: str) -> int:
        """Return the number of messages that are ready for delivery."""
        if queue in self._fanouts:
            return 0
        counts = [handle.info() for handle in self._stores(queue)]
        return sum(count.events - count.in_flight - count.waiting for count in counts)

    def _purge(self, queue: str) -> int:
        """Remove the messages of a queue, and return their number."""
        return sum(handle.purge() for handle in self._stores(queue))


def _attributes(arguments: Mapping[str, Any], *, is_stored: bool) -> dict[str, Any]:
    """Return the attributes of a queue of the realm for the arguments of a kombu queue."""
    attributes: dict[str, Any] = {} if is_stored else {"type": "reliable", "event_ttl": True}
    if "x-message-ttl" in arguments:
        attributes["ttl"] = int(arguments["x-message-ttl"])
    if "x-max-length" in arguments:
        attributes["capacity"] = int(arguments["x-max-length"])
    if arguments.get("x-overflow") == "reject-publish":
        attributes["storage"] = {"honour_capacity": True}
    return attributes


def _like(definition: Definition) -> dict[str, Any]:
    """Return the attributes for another priority of a queue with this definition: those whose
    values are booleans, numbers or texts."""
    values = {name: getattr(definition, name) for name in _COPIED}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, str))}
