"""Converts the definitions of a RabbitMQ virtual host to a topology.

A queue stays a queue, a stream becomes a channel, and an exchange becomes a channel with a join for
each destination. An exchange stores nothing, so its channel has the jms engine: an event stays only
as long as a consumer of the channel itself needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from penstock_core.bounds import REDELIVERIES_MAX, TTL_MS_MAX
from penstock_core.channel.retention import CAPACITY_MAX
from penstock_core.columns.selectors import parse as parse_selector
from penstock_core.vocabulary.argument_errors import decode_json, explain
from penstock_core.vocabulary.errors import InvalidArgument, Refused
from penstock_core.vocabulary.nesting import check_json_nesting
from penstock_tools.migration.conversion import Conversion, check_count
from penstock_tools.migration.rabbitmq_access import (
    PermissionEntry,
    UserEntry,
    VirtualHostEntry,
    convert_access,
)
from penstock_tools.migration.regular_expressions import NamePatterns
from penstock_tools.migration.routing_keys import (
    KeyRoutes,
    selector_of_headers,
    selector_of_keys,
    selector_of_pattern,
)

T = TypeVar("T", bound="VirtualHostEntry")

KEY_NAME: Final = "tag"
"""Default name of the routing key of an event in selectors."""
_EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
_PREDEFINED: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
"""Exchanges that every virtual host has and that an export leaves out, with their types."""
_ABOUT_THE_FILE: Final = frozenset(
    (
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "rabbitmq_definition_format",
        "original_cluster_name",
        "original_vhost_name",
        "explanation",
        "description",
        "metadata",
        "default_queue_type",
        "limits",
    )
)
"""Keys of the document that are not lists of entries."""
_WITHOUT_EFFECT: Final = frozenset(
    (
        "queue-type",
        "queue-mode",
        "queue-version",
        "queue-leader-locator",
        "queue-master-locator",
        "dead-letter-strategy",
        "initial-cluster-size",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "quorum-initial-group-size",
        "quorum-target-group-size",
        "stream-filter-size-bytes",
        "stream-max-segment-size-bytes",
    )
)
"""Arguments about places, replicas and files, which a realm decides itself; also ``ha-...``."""
_ADVICE: Final = {
    "expires": "a store stays until it is deleted; delete it when it is not used any more",
    "max-length-bytes": "capacity counts events; set capacity to as many as fit into these bytes",
    "max-priority": "events are delivered in the order of their ids; use one queue per priority",
    "single-active-consumer": "a queue serves all its readers; use a channel with an exclusive or "
    "serial durable for one reader at a time",
    "consumer-timeout": "queues have no such limit; use a channel with a durable, and ack_timeout",
    "alternate-exchange": "events that no join takes are not stored; add a join without a selector "
    "to keep them",
    "delayed-type": "publish each event with the time of its delivery for a delay",
    "federation-upstream": "joins stay within a realm; bring events over with a client",
    "federation-upstream-set": "joins stay within a realm; bring events over with a client",
}
"""Advice on arguments and keys of policies that have no counterpart."""
_AGE: Final = re.compile(r"([0-9]{1,15})([YMDhms])")
_AGE_UNITS_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
"""Lengths of the units of ``x-max-age``."""

KEY_CHARACTERS_MAX: Final = 255
"""Maximum number of characters of a name or routing key; RabbitMQ allows as many bytes."""
POLICY_KEYS_MAX: Final = 100
"""Maximum number of keys in the definition of a policy; RabbitMQ knows about 40."""
COMPARED_WORDS_MAX: Final = 10_000_000
"""Maximum number of words of binding patterns that are compared with words of the routing keys of
dead letters."""
ShortText = Annotated[str, Meta(max_length=KEY_CHARACTERS_MAX)]


class QueueEntry(VirtualHostEntry, frozen=True, kw_only=True):
    name: ShortText
    durable: bool = True
    auto_delete: bool = False
    type: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def queue_type(self) -> str:
        """``classic``, ``quorum``, ``stream``, or another word of the file."""
        return str(self.arguments.get("x-queue-type", self.type) or "classic")


class ExchangeEntry(VirtualHostEntry, frozen=True, kw_only=True):
    name: ShortText
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def routing(self) -> str:
        """The type that decides about routing; that of a delayed exchange is an argument."""
        if self.type == "x-delayed-message":
            return str(self.arguments.get("x-delayed-type", ""))
        return self.type


class BindingEntry(VirtualHostEntry, frozen=True, kw_only=True):
    source: ShortText
    destination: ShortText
    destination_type: Literal["queue", "exchange"] = "queue"
    routing_key: ShortText = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class ArgumentValue(Struct, frozen=True):
    """The value of an argument, and where it comes from."""

    value: Any
    origin: str
    shown: str
    """Origin and value as a text of bounded length."""

    @classmethod
    def of(cls, value: Any, origin: str) -> ArgumentValue:
        """Return an argument with its text."""
        return cls(value, origin, f"{origin} {value!r:.80}")


class PolicyEntry(VirtualHostEntry, frozen=True, kw_only=True):
    name: str
    pattern: str
    definition: Annotated[dict[str, Any], Meta(max_length=POLICY_KEYS_MAX)] = msgspec.field(
        default_factory=dict
    )
    priority: int = 0
    apply_to: str = msgspec.field(default="all", name="apply-to")

    def takes(self, queue: QueueEntry) -> bool:
        """Return whether the policy applies to queues of the type of ``queue``."""
        classes = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
        return self.apply_to in ("all", "queues", classes.get(queue.queue_type, ""))

    def arguments(self) -> dict[str, ArgumentValue]:
        """Return the arguments that the policy gives to queues."""
        return {
            key: ArgumentValue.of(value, f"{key:.80} of policy {self.name:.80}")
            for key, value in self.definition.items()
        }


def convert_definitions(
    content: bytes,
    file: str,
    *,
    virtual_host: str = "",
    key_name: str = KEY_NAME,
    with_access: bool = True,
) -> Conversion:
    """Convert the definitions of one virtual host, ``with_access`` also users and permissions.
    ``key_name`` is the name of the routing key of an event in selectors.

    Raises ``InvalidArgument`` if the file is not an export of definitions, or if it has several
    virtual hosts and ``virtual_host`` is empty.
    """
    reading = _DefinitionsReading(content, file, virtual_host, key_name=key_name)
    return reading.convert(with_access=with_access)


class _DefinitionsReading:
    """The conversion of one file."""

    def __init__(self, content: bytes, file: str, virtual_host: str, *, key_name: str) -> None:
        self._file = file
        check_json_nesting(content, file)
        self._document = decode_json(
            content,
            dict[str, Any],
            whole="the file",
            refuse=lambda reason: InvalidArgument(f"{file}: {reason}"),
        )
        self._virtual_host = virtual_host
        self._key_name = key_name
        self._conversion = Conversion(file)
        self._names: dict[tuple[str, str], str] = {}
        """Canonical names of the stores, by kind (queue, exchange) and name in the file."""
        self._routing: dict[str, str] = {}
        """Routing of each exchange, by its name in the file."""
        self._bindings: list[BindingEntry] = []
        self._routes: dict[str, KeyRoutes] = {}
        """Destinations of bindings, by the name of their exchange."""
        self._compared_words = 0
        self._dead_event_targets: dict[tuple[str, str], tuple[str, str]] = {}
        """Results of ``_target_of_key``, by exchange and routing key."""

    def convert(self, *, with_access: bool) -> Conversion:
        self._check_key_name()
        queues = self._entries("queues", QueueEntry)
        exchanges = self._entries("exchanges", ExchangeEntry)
        self._bindings = self._entries("bindings", BindingEntry)
        policies = self._entries("policies", PolicyEntry)
        permissions = self._entries("permissions", PermissionEntry)
        self._choose_virtual_host([queues, exchanges, self._bindings, policies, permissions])
        queues, exchanges = self._of_virtual_host(queues), self._of_virtual_host(exchanges)
        self._bindings = self._of_virtual_host(self._bindings)
        arguments = self._effective_arguments(queues, self._of_virtual_host(policies))
        for queue in sorted(queues, key=lambda queue: queue.name):
            self._convert_queue(queue, arguments[queue.name])
        exchanges += self._predefined(exchanges)
        for exchange in sorted(exchanges, key=lambda exchange: exchange.name):
            self._convert_exchange(exchange)
        self._convert_dead_letters(arguments)
        self._convert_bindings()
        if with_access:
            convert_access(
                self._conversion,
                users=self._entries("users", UserEntry),
                permissions=self._of_virtual_host(permissions),
                names=self._names,
                internal={exchange.name for exchange in exchanges if exchange.internal},
            )
            self._report_key_permissions()
        self._report_other_parts()
        return self._conversion

    # --- the document ---------------------------------------------------------------------

    def _check_key_name(self) -> None:
        try:
            parse_selector(f"{self._key_name} = 'key'")
        except Refused as error:
            raise InvalidArgument(
                f"{self._key_name!r} is not a name in selectors; give tag, JMSType or a property"
            ) from error

    def _entries(self, section: str, shape: type[T]) -> list[T]:
        """Return the entries of a section. Raises ``InvalidArgument`` for one that RabbitMQ cannot
        have written."""
        entries = self._document.get(section) or []
        if not isinstance(entries, list):
            raise InvalidArgument(f"{self._file}: {section} must be a list")
        check_count(len(entries), section)
        converted = []
        for index, entry in enumerate(entries):
            try:
                converted.append(msgspec.convert(entry, shape))
            except (msgspec.ValidationError, RecursionError) as error:
                reason = explain(error, entry, kind=shape, whole="the entry")
                raise InvalidArgument(f"{self._file}: {section}[{index}]: {reason}") from error
        return converted

    def _choose_virtual_host(self, sections: Iterable[Sequence[VirtualHostEntry]]) -> None:
        """Choose the only virtual host. Raises ``InvalidArgument`` if there are several."""
        names = sorted({entry.virtual_host for section in sections for entry in section} - {""})
        if self._virtual_host and names and self._virtual_host not in names:
            raise InvalidArgument(
                f"{self._file} has no virtual host {self._virtual_host!r}; it has {_listed(names)}"
            )
        if not self._virtual_host and len(names) > 1:
            raise InvalidArgument(
                f"{self._file} has the virtual hosts {_listed(names)}; a realm is one of them: "
                f"choose it with --vhost"
            )
        self._virtual_host = self._virtual_host or (names[0] if names else "")
        others = [name for name in names if name != self._virtual_host]
        if others:
            self._conversion.note(
                f"virtual hosts {_listed(others)}", "left out; convert each to a separate realm"
            )

    def _of_virtual_host(self, entries: Iterable[T]) -> list[T]:
        return [entry for entry in entries if entry.virtual_host in ("", self._virtual_host)]

    def _report_key_permissions(self) -> None:
        for entry in self._dictionaries("topic_permissions"):
            self._conversion.warn(
                f"topic permission of {entry.get('user')} on exchange {entry.get('exchange')}",
                "rights are for whole channels; use a channel for each group of keys",
            )

    def _report_other_parts(self) -> None:
        """Report the parts of the document that are not converted."""
        conversion = self._conversion
        for entry in self._dictionaries("parameters"):
            conversion.warn(
                f"parameter {entry.get('component')} {entry.get('name')}",
                "plugins and operator policies have no counterpart; joins copy within a realm",
            )
        for entry in self._dictionaries("global_parameters"):
            conversion.note(f"global parameter {entry.get('name')}", "left out: a broker's own")
        converted = ("queues", "exchanges", "bindings", "policies", "permissions", "users")
        reported = ("topic_permissions", "parameters", "global_parameters", "vhosts")
        for key in sorted(self._document.keys() - _ABOUT_THE_FILE - {*converted, *reported}):
            conversion.warn(key, "left out: an export of RabbitMQ has no such part")
        if self._document.get("limits"):
            conversion.warn("limits", "left out; a realm has the settings limits.* instead")

    def _dictionaries(self, section: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a section that belong to this virtual host. Only their names are
        reported, so they are not converted to structs."""
        entries = self._document.get(section) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InvalidArgument(f"{self._file}: {section} must be a list of objects")
        check_count(len(entries), section)
        return (entry for entry in entries if entry.get("vhost", "") in ("", self._virtual_host))

    # --- queues and streams ---------------------------------------------------------------

    def _effective_arguments(
        self, queues: Sequence[QueueEntry], policies: Sequence[PolicyEntry]
    ) -> dict[str, dict[str, ArgumentValue]]:
        """Return the arguments of each queue by their names without ``x-``: its own, and those of
        its policy. Of two limits the lower one holds, of other arguments the queue's own."""
        conversion = self._conversion
        patterns = NamePatterns([queue.name for queue in queues])
        policy_arguments: dict[str, Mapping[str, ArgumentValue]] = {}
        by_name = {queue.name: queue for queue in queues}
        for policy in sorted(policies, key=lambda policy: (policy.priority, policy.name)):
            try:
                names = patterns.matching(policy.pattern)
            except InvalidArgument as error:
                conversion.warn(f"policy {policy.name}", f"left out: {error}")
                continue
            # Texts of values are made once, because a policy applies to many queues.
            values = policy.arguments()
            policy_arguments |= {name: values for name in names if policy.takes(by_name[name])}
            if policy.apply_to == "exchanges" or "alternate-exchange" in policy.definition:
                conversion.warn(f"policy {policy.name} of exchanges", _ADVICE["alternate-exchange"])
        effective = {}
        for queue in queues:
            arguments = {
                key.removeprefix("x-"): ArgumentValue.of(value, f"{key:.80}")
                for key, value in queue.arguments.items()
            }
            for key, argument in policy_arguments.get(queue.name, {}).items():
                arguments[key] = _stricter(arguments.get(key, argument), argument)
            effective[queue.name] = arguments
        return effective

    def _convert_queue(self, queue: QueueEntry, arguments: Mapping[str, ArgumentValue]) -> None:
        is_stream = queue.queue_type == "stream"
        what = f"{'stream' if is_stream else 'queue'} {queue.name}"
        if queue.queue_type not in ("classic", "quorum", "stream"):
            self._conversion.warn(
                f"{what}: type {queue.queue_type}", "it is converted like a classic queue"
            )
        if queue.auto_delete:
            self._conversion.warn(
                f"{what}: auto_delete",
                "a queue stays until it is deleted; clients of AMQP and JMS get temporary queues",
            )
        attributes: dict[str, Any] = {"type": "mixed" if queue.durable else "reliable"}
        if queue.queue_type in ("quorum", "stream"):
            attributes["type"] = "persistent"
        if is_stream:
            attributes["retain_consumed"] = True
        self._convert_limits(what, attributes, arguments)
        self._report_arguments(what, arguments)
        name = self._conversion.add_store(
            "channel" if is_stream else "queue", queue.name, attributes, tuple(what.split(" ", 1))
        )
        if name:
            self._names["queue", queue.name] = name

    def _convert_limits(
        self, what: str, attributes: dict[str, Any], arguments: Mapping[str, ArgumentValue]
    ) -> None:
        """Set the attributes that correspond to limits of a queue."""
        if limit := arguments.get("message-ttl"):
            attributes["ttl"] = self._number(what, limit, least=1, most=TTL_MS_MAX)
        if limit := arguments.get("max-age"):
            match = _AGE.fullmatch(limit.value) if isinstance(limit.value, str) else None
            ms = int(match[1]) * _AGE_UNITS_MS[match[2]] if match else limit.value
            age = ArgumentValue.of(ms, limit.origin)
            attributes["ttl"] = self._number(what, age, least=1, most=TTL_MS_MAX)
        if limit := arguments.get("max-length"):
            attributes["capacity"] = self._number(what, limit, least=1, most=CAPACITY_MAX)
        if overflow := arguments.get("overflow"):
            self._convert_overflow(what, attributes, overflow)
        for name in ("ttl", "capacity"):
            if attributes.get(name, 0) is None:
                del attributes[name]

    def _convert_overflow(
        self, what: str, attributes: dict[str, Any], overflow: ArgumentValue
    ) -> None:
        if overflow.value in ("reject-publish", "reject-publish-dlx"):
            attributes["storage"] = {"honour_capacity": True}
        if overflow.value == "reject-publish-dlx":
            self._conversion.warn(
                f"{what}: {overflow.shown}",
                "a refused publish is an error for the publisher, and nothing is stored",
            )
        elif overflow.value not in ("reject-publish", "drop-head"):
            self._conversion.warn(f"{what}: {overflow.shown}", "left out: it is not known here")

    def _number(self, what: str, limit: ArgumentValue, *, least: int, most: int) -> int | None:
        """Return a limit within its bounds here; None, with a warning, if it is not a number."""
        value = limit.value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._conversion.warn(f"{what}: {limit.shown}", "left out: it is not a number")
            return None
        bounded = min(max(value, least), most)
        if bounded != value:
            self._conversion.warn(
                f"{what}: {limit.shown}", f"written as {bounded}, the nearest value"
            )
        return bounded

    def _report_arguments(self, what: str, arguments: Mapping[str, ArgumentValue]) -> None:
        """Report the arguments of a queue that have no counterpart."""
        converted = ("message-ttl", "max-age", "max-length", "overflow", "delivery-limit")
        for key, limit in sorted(arguments.items()):
            subject = f"{what}: {limit.shown}"
            if key in (*converted, "dead-letter-exchange", "dead-letter-routing-key"):
                continue
            if key in _WITHOUT_EFFECT or key.startswith("ha-"):
                if key != "queue-type":
                    self._conversion.note(subject, "nothing to do: it is about files or replicas")
            elif key != "single-active-consumer" or limit.value is not False:
                self._conversion.warn(subject, _ADVICE.get(key, "left out: it is not known here"))

    # --- exchanges ------------------------------------------------------------------------

    def _predefined(self, exchanges: Sequence[ExchangeEntry]) -> list[ExchangeEntry]:
        """Return the predefined exchanges that bindings use and that the file leaves out."""
        sources = {binding.source for binding in self._bindings}
        sources -= {exchange.name for exchange in exchanges}
        return [
            ExchangeEntry(name=name, type=_PREDEFINED[name])
            for name in sources & _PREDEFINED.keys()
        ]

    def _convert_exchange(self, exchange: ExchangeEntry) -> None:
        conversion, what = self._conversion, f"exchange {exchange.name}"
        if exchange.routing not in _EXCHANGE_TYPES:
            conversion.warn(
                f"{what}: type {exchange.type}",
                "its bindings are left out; join its channel to queues with selectors",
            )
        elif exchange.type not in _EXCHANGE_TYPES:
            conversion.warn(f"{what}: type {exchange.type}", _ADVICE["delayed-type"])
        if exchange.auto_delete:
            conversion.warn(f"{what}: auto_delete", _ADVICE["expires"])
        if exchange.internal:
            conversion.warn(f"{what}: internal", "grant nobody the right to publish to its channel")
        for key, value in sorted(exchange.arguments.items()):
            if key != "x-delayed-type":
                name = key.removeprefix("x-")
                conversion.warn(
                    f"{what}: {key} {value!r:.80}",
                    _ADVICE.get(name, "left out: it is not known here"),
                )
        name = self._name_of_exchange(exchange.name)
        channel = conversion.add_store(
            "channel",
            name,
            {"type": "mixed" if exchange.durable else "reliable", "engine": "jms"},
            ("exchange", exchange.name),
        )
        if channel:
            self._names["exchange", exchange.name] = channel
            self._routing[exchange.name] = exchange.routing

    def _name_of_exchange(self, name: str) -> str:
        """Return the name of an exchange's channel. A queue of the same name keeps it, because
        consumers are attached to queues."""
        if ("queue", name) not in self._names:
            return name
        channel = f"{name}.exchange"
        self._conversion.warn(
            f"exchange {name}",
            f"a queue has its name, and channels and queues share their names; its channel is "
            f"{channel}: publish there",
        )
        return channel

    # --- dead letters ---------------------------------------------------------------------

    def _convert_dead_letters(self, arguments: Mapping[str, Mapping[str, ArgumentValue]]) -> None:
        """Set the dead event stores of queues, and the limits of deliveries, which need them."""
        self._index_bindings()
        targets: dict[str, str] = {}
        converted = [
            (f"queue {queue}", self._names["queue", queue], arguments[queue])
            for queue in sorted(arguments)
            if ("queue", queue) in self._names
        ]
        for what, name, queue_arguments in converted:
            if exchange := queue_arguments.get("dead-letter-exchange"):
                key = queue_arguments.get("dead-letter-routing-key")
                target, reason = self._dead_event_target(exchange.value, key and key.value)
                if reason:
                    shown = f"{what}: {exchange.shown}"
                    self._conversion.warn(shown, reason)
                if target:
                    targets[name] = target
        reasons = self._conversion.lead_dead_events(targets)
        for what, name, queue_arguments in converted:
            if name in reasons:
                self._conversion.warn(
                    f"{what}: dead-letter-exchange",
                    f"left out: {reasons[name]}; for a retry after a delay use backoff and "
                    "max_deliveries of the queue",
                )
            self._convert_delivery_limit(what, name, queue_arguments.get("delivery-limit"))

    def _convert_delivery_limit(self, what: str, name: str, limit: ArgumentValue | None) -> None:
        store = self._conversion.stores[name]
        if limit is None or limit.value == -1 or store.kind == "channel":
            return
        if not store.definition.dead_event_store:
            self._conversion.warn(
                f"{what}: {limit.shown}",
                "max_deliveries needs a dead_event_store, because no event is dropped; set both",
            )
            return
        redeliveries = self._number(what, limit, least=0, most=REDELIVERIES_MAX - 1)
        if redeliveries is not None:
            self._conversion.change_store(name, max_deliveries=redeliveries + 1)

    def _dead_event_target(self, exchange: object, key: object) -> tuple[str, str]:
        """Return the store that dead letters reach, or an empty name, and what differs."""
        if not isinstance(exchange, str) or not (key is None or isinstance(key, str)):
            return "", "left out: it is not a text"
        if key is not None and len(key) > KEY_CHARACTERS_MAX:
            return "", f"left out: its routing key has more than {KEY_CHARACTERS_MAX} characters"
        if not exchange:
            target = self._names.get(("queue", key or ""), "")
            return target, "" if target else "left out: its routing key is not a queue of the file"
        channel = self._names.get(("exchange", exchange), "")
        if not channel:
            return "", "left out: the file has no such exchange"
        if key is None:  # the joins of the channel route the event by its own key
            return channel, ""
        if (exchange, key) not in self._dead_event_targets:
            self._dead_event_targets[exchange, key] = self._target_of_key(exchange, key, channel)
        return self._dead_event_targets[exchange, key]

    def _target_of_key(self, exchange: str, key: str, channel: str) -> tuple[str, str]:
        """Return the only store that dead letters with a key reach through an exchange. If they
        reach none or several, return the exchange's channel, and what differs."""
        target = channel
        if routes := self._routes.get(exchange):
            self._compared_words += routes.comparisons(key)
            if self._compared_words <= COMPARED_WORDS_MAX:
                destinations = routes.destinations(key)
                target = destinations.pop() if len(destinations) == 1 else channel
        if self._conversion.stores[target].definition.engine != "jms":
            return target, ""
        return target, (
            f"the dead event store is channel {target}, but dead events keep their routing key "
            f"instead of {key!r:.80}; check the joins of the channel"
        )

    def _index_bindings(self) -> None:
        """Add the bindings that take messages without headers to the routes of their exchanges."""
        for binding in self._bindings:
            routing, pattern = self._routing.get(binding.source), binding.routing_key
            destination = self._names.get((binding.destination_type, binding.destination))
            if destination is None or routing not in ("direct", "fanout", "topic"):
                continue
            self._routes.setdefault(binding.source, KeyRoutes()).add(
                "#" if routing == "fanout" else pattern,
                destination,
                is_literal=routing == "direct" or (routing == "topic" and _is_literal(pattern)),
            )

    # --- bindings -------------------------------------------------------------------------

    def _convert_bindings(self) -> None:
        """Add one join for all bindings between an exchange and a destination."""
        pairs: dict[tuple[str, str, str], list[BindingEntry]] = {}
        for binding in self._bindings:
            if binding.source:  # the default exchange is bound to every queue
                key = (binding.source, binding.destination_type, binding.destination)
                pairs.setdefault(key, []).append(binding)
        for (source, kind, destination), bindings in sorted(pairs.items()):
            what = f"binding {source} -> {destination}"
            ends = self._names.get(("exchange", source)), self._names.get((kind, destination))
            if ends[0] is None or ends[1] is None:
                missing = destination if ends[0] else source
                self._conversion.warn(what, f"left out: {missing} is not in the topology")
                continue
            selectors = self._selectors(what, bindings)
            if selectors is not None:
                self._conversion.add_join(
                    ends[0],
                    ends[1],
                    selector=selectors,
                    archive=False,
                    place=tuple(what.split(" ", 1)),
                )

    def _selectors(self, what: str, bindings: Sequence[BindingEntry]) -> str | None:
        """Return the selector of a join that copies what one of the bindings takes: empty if it
        takes everything, None if it takes nothing."""
        routing = self._routing[bindings[0].source]
        if routing not in _EXCHANGE_TYPES:
            self._conversion.warn(what, f"left out: nothing here routes like type {routing}")
            return None
        if routing == "fanout":
            return ""
        keys: set[str] = set()
        conditions: set[str] = set()
        for binding in bindings:
            if routing == "direct" or (routing == "topic" and _is_literal(binding.routing_key)):
                keys.add(binding.routing_key)
                continue
            condition = self._condition(what, binding, routing)
            if condition == "":
                return ""
            if condition is not None:
                conditions.add(condition)
        if keys:
            conditions.add(selector_of_keys(keys, self._key_name))
        return " OR ".join(sorted(conditions)) if conditions else None

    def _condition(self, what: str, binding: BindingEntry, routing: str) -> str | None:
        """Return the selector for one binding; None, with a warning, if there is none."""
        convert: Callable[[], str | None] = (
            (lambda: selector_of_headers(binding.arguments))
            if routing == "headers"
            else (lambda: selector_of_pattern(binding.routing_key, self._key_name))
        )
        shown = binding.arguments if routing == "headers" else binding.routing_key
        try:
            condition = convert()
            if condition:
                parse_selector(condition)
        except Refused as error:
            self._conversion.warn(f"{what}: {shown!r:.200}", f"left out: {error}")
            return None
        if condition is None:
            self._conversion.note(f"{what}: {shown!r:.200}", "left out: it takes no message")
        return condition


def _is_literal(pattern: str) -> bool:
    """Return whether a pattern of a topic exchange has no wildcard."""
    return not {"*", "#"} & set(pattern.split("."))


def _stricter(own: ArgumentValue, of_policy: ArgumentValue) -> ArgumentValue:
    """Return the argument that holds: of two numbers the lower one, else the queue's own."""
    if type(own.value) is int and type(of_policy.value) is int:
        return min(own, of_policy, key=lambda limit: int(limit.value))
    return own


def _listed(names: Sequence[str]) -> str:
    """Return names of virtual hosts for a text."""
    return ", ".join(f"{name!r:.80}" for name in names[:20])
