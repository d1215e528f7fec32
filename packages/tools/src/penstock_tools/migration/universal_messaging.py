"""Converts the XML export of a realm of Universal Messaging to a topology.

Names of elements and attributes differ between its versions, so an element is known by the end of
its name, and everything that is not known is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from penstock_core.access.rights import parse_subject
from penstock_core.bounds import NEXT_ID_MAX, TTL_MS_MAX
from penstock_core.channel.retention import (
    CAPACITY_MAX,
    KEY_DEPTH_MAX,
    READ_BYTES_MAX,
    READ_BYTES_MIN,
)
from penstock_core.vocabulary.errors import Refused
from penstock_core.vocabulary.names import destination_name
from penstock_tools.migration.conversion import Conversion, check_count
from penstock_tools.migration.realm_xml import Element, read_realm_xml

Kind = Literal["channel", "queue"]

_TYPES: Final = {"reliable": "reliable", "persistent": "persistent", "mixed": "mixed"}
_REMOVED_TYPES: Final = {
    "simple": ("reliable", "its ids go on after a restart"),
    "offheap": ("reliable", "limits.memory_bytes of the realm bounds its memory"),
    "paged": ("mixed", "its persistent events are on disk"),
    "transient": ("transient", "10.5 makes it reliable with a TTL of 1 ms; here the type exists"),
}
"""Types that Universal Messaging 10.5 has removed, with the type here and a remark. Version 10.5
itself maps all but the last one to the same types."""
_DURABLE_TYPES: Final = {
    "": "exclusive",
    "named": "exclusive",
    "exclusive": "exclusive",
    "shared": "shared",
    "serial": "serial",
}
_REMOVED_DURABLE_TYPES: Final = {
    "sharedqueued": ("shared", "its clients are served at the same time"),
    "priority": ("exclusive", "a second client is refused; serial lets clients take over"),
}
_STORAGE: Final = {
    "honorcapacitywhenfull": "honour_capacity",
    "synconeachwrite": "sync_each_write",
    "syncmaxbatchsize": "sync_max_batch_size",
    "syncbatchtime": "sync_batch_time",
    "performautomaticmaintenance": "auto_maintenance",
    "enablecaching": "enable_caching",
    "cacheonreload": "cache_on_reload",
    "priority": "priority",
    "multifileeventsperspindle": "events_per_spindle",
    "readbuffersize": "read_buffer_size",
    "stampdictionary": "stamp_dictionary",
}
"""Storage properties here, by the attributes of ``StorePropertiesEntry``."""
_TRUTHS: Final = frozenset(
    (
        "honour_capacity",
        "sync_each_write",
        "auto_maintenance",
        "enable_caching",
        "cache_on_reload",
        "stamp_dictionary",
    )
)
_OF_MEMORY: Final = frozenset(("honour_capacity", "priority", "stamp_dictionary"))
"""Storage properties that have an effect on stores in memory."""
_STORAGE_BOUNDS: Final = {
    "sync_max_batch_size": (1, 1 << 30),
    "sync_batch_time": (1, 60_000),
    "priority": (0, 9),
    "events_per_spindle": (0, CAPACITY_MAX),
    "read_buffer_size": (READ_BYTES_MIN, READ_BYTES_MAX),
}
"""Smallest and largest value of each storage property that is a number."""
_ZERO_IS_DEFAULT: Final = frozenset(("sync_max_batch_size", "sync_batch_time", "read_buffer_size"))
"""Storage properties whose value 0 means a default of the server."""
_STORE_RIGHTS: Final[Mapping[str, Mapping[str, str]]] = {
    "channel": {
        "fullcontrol": "full",
        "modifyaclentries": "manage_acl",
        "purgeevents": "purge",
        "purge": "purge",
        "subscribe": "subscribe",
        "publish": "publish",
        "usenamedsubcription": "durable",
        "usenamedsubscription": "durable",
    },
    "queue": {
        "fullcontrol": "full",
        "modifyaclentries": "manage_acl",
        "purgeevents": "purge",
        "purge": "purge",
        "peek": "peek",
        "subscribe": "peek",
        "push": "push",
        "publish": "push",
        "pop": "pop",
    },
    "realm": {
        "fullcontrol": "full",
        "modifyaclentries": "manage_acl",
        "access": "access",
        "accesstherealm": "access",
        "usetherealm": "access",
        "configure": "configure",
        "configuretherealm": "configure",
        "configurerealm": "configure",
        "channels": "channels",
        "addremovechannels": "channels",
        "realm": "realm",
        "addremoverealms": "realm",
        "adminapi": "admin",
        "useadminapi": "admin",
    },
}
"""Rights here, by the attributes of an entry of an access control list."""
_IMPLIED_RIGHTS: Final = frozenset(("listaclentries", "getlasteid"))
"""Rights that every user who may use a store has here."""
_EVERYONE: Final = "everyone"
"""The group of all users."""
_ADDRESS: Final = re.compile(r"[0-9.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*|\*")
_STORE_ATTRIBUTES: Final = (
    "name",
    "type",
    "ttl",
    "capacity",
    "eid",
    "clusterwide",
    "jmsengine",
    "mergeengine",
    "deadeventstore",
    "deadeventstorename",
)
_DURABLE_ATTRIBUTES: Final = (
    "name",
    "type",
    "durabletype",
    "shared",
    "serial",
    "priority",
    "persistent",
    "clusterwide",
    "selector",
    "filter",
)
_ENDS_OF_JOINS: Final = (
    ("from", "source", "channelfrom", "fromchannel"),
    ("to", "destination", "channelto", "tochannel", "name"),
)
"""Attributes for the source and for the destination of a join."""
_ARCHIVAL: Final = ("archival", "archivaljoin", "archive", "isarchival")
_REMOTE: Final = ("torealm", "realm", "remoterealm")
_OF_THE_SERVER: Final = {
    "realmconfiguration": "set the settings of penstock serve instead",
    "clusterentry": "penstock cluster describes clusters in the settings of their nodes",
    "interface": "set listen.* and http.* of penstock serve instead",
    "schedul": "run penstock commands with cron or systemd timers",
    "datagroup": "use channels with joins or selectors",
    "jndi": "penstock topology jndi writes a jndi.properties for Apache Qpid JMS",
    "connectionfactory": "penstock topology jndi writes a jndi.properties for Apache Qpid JMS",
    "plugin": "a realm has its HTTP interface and console itself",
}
"""Advice on elements whose names contain a word."""


def convert_realm(content: bytes, file: str, *, with_access: bool = True) -> Conversion:
    """Convert an exported realm, ``with_access`` also its users, groups and rights. Raises
    ``InvalidArgument`` if the file is not an exported realm."""
    return _RealmReading(file, with_access=with_access).convert(read_realm_xml(content, file))


class _RealmReading:
    """The conversion of one export."""

    def __init__(self, file: str, *, with_access: bool) -> None:
        self._with_access = with_access
        self._conversion = Conversion(file)
        self._names: dict[str, str] = {}
        """Names of the stores in the topology, by their canonical names."""
        self._joins: list[tuple[str, Element]] = []
        """Joins, each with the channel whose element contains it."""
        self._dead_event_stores: dict[str, str] = {}
        self._subjects: dict[str, bool] = {}
        """Names of users, each with whether the topology can have it."""
        self._unknown: Counter[str] = Counter()

    def convert(self, root: Element) -> Conversion:
        entries = sorted(root.entries(), key=_sort_key)
        check_count(len(entries), "elements below the realm")
        for element in entries:
            self._convert_entry(element)
        self._lead_dead_events()
        for source, join in self._joins:
            self._convert_join(source, join)
        for tag, number in sorted(self._unknown.items()):
            advice = next(
                (advice for word, advice in _OF_THE_SERVER.items() if word in tag.lower()),
                "left out: it has no counterpart here",
            )
            self._conversion.warn(f"{number} elements {tag}" if number > 1 else tag, advice)
        if users := sum(self._subjects.values()):
            self._conversion.warn(
                f"passwords of {users} users",
                "left out: set each with penstock user password NAME, or configure tokens or "
                "certificates",
            )
        return self._conversion

    def _convert_entry(self, element: Element) -> None:
        """Convert an element directly below the realm, apart from sets."""
        match element.tag:
            case "channelentry" | "channel":
                self._convert_store("channel", element)
            case "queueentry" | "queue":
                self._convert_store("queue", element)
            case tag if tag.endswith("joinentry"):
                self._joins.append(("", element))
            case tag if tag.endswith("aclentry"):
                self._convert_acl("realm", "", element)
            case tag if tag.endswith("securitygroupentry") or tag == "groupentry":
                self._convert_group(element)
            case _:
                self._unknown[element.name_in_file] += 1

    # --- stores ---------------------------------------------------------------------------

    def _convert_store(self, kind: Kind, element: Element) -> None:
        parts = list(element.entries())
        description = next(
            (part for part in parts if part.tag.endswith("attributesentry")), element
        )
        name = description.text("name")
        what = f"{kind} {name:.255}"
        attributes = self._attributes(kind, what, description)
        keys = {
            key.text("keyname", "name"): self._number(
                what, key, "keydepth", least=1, most=KEY_DEPTH_MAX
            )
            or 1
            for key in parts
            if key.tag.endswith("keyentry")
        }
        if keys:
            attributes["keys"] = keys
        for properties in parts:
            if properties.tag == "storepropertiesentry":
                attributes["storage"] = self._storage(what, properties, attributes)
        self._fit_to_engine(what, attributes)
        canonical = self._conversion.add_store(
            kind, name.lstrip("/"), attributes, (kind, name.lstrip("/"))
        )
        if not canonical:
            return
        self._names[canonical] = canonical
        if dead := description.text("deadeventstore", "deadeventstorename"):
            self._dead_event_stores[canonical] = dead
        self._convert_parts(kind, canonical, parts)

    def _convert_parts(self, kind: Kind, name: str, parts: Iterable[Element]) -> None:
        """Convert the durables, joins and rights of a store."""
        for part in parts:
            match part.tag:
                case "storepropertiesentry":
                    pass
                case tag if tag.endswith(("attributesentry", "keyentry")):
                    pass
                case tag if tag.endswith("joinentry"):
                    self._joins.append((name, part))
                case tag if tag.endswith("aclentry"):
                    self._convert_acl(kind, name, part)
                case "durableentry" | "namedobjectentry" | "namedsubscriptionentry":
                    self._convert_durable(kind, name, part)
                case _:
                    self._unknown[part.name_in_file] += 1

    def _attributes(self, kind: Kind, what: str, description: Element) -> dict[str, Any]:
        attributes: dict[str, Any] = {"type": self._type(what, description.text("type"))}
        bounds = {
            "ttl": ("ttl", TTL_MS_MAX),
            "capacity": ("capacity", CAPACITY_MAX),
            "eid": ("start_event_id", NEXT_ID_MAX),
        }
        for name, (attribute, most) in bounds.items():
            if number := self._number(what, description, name, least=0, most=most):
                attributes[attribute] = number
        if description.truth("jmsengine") and kind == "queue":
            self._conversion.warn(f"{what}: jmsEngine", "left out: queues have one engine")
        elif description.truth("jmsengine"):
            attributes["engine"] = "jms"
        elif description.truth("mergeengine") and kind == "queue":
            self._conversion.warn(f"{what}: mergeEngine", "left out: queues have one engine")
        elif description.truth("mergeengine"):
            attributes["engine"] = "merge"
        self._report_attributes(what, description, _STORE_ATTRIBUTES)
        return attributes

    def _report_attributes(self, what: str, element: Element, converted: Iterable[str]) -> None:
        """Report the attributes of an element that are not converted."""
        for name in sorted(element.attributes.keys() - set(converted)):
            text = element.attributes[name]
            if text.strip().lower() not in ("", "false"):
                self._conversion.warn(
                    f"{what}: {name} {text:.80}", "left out: it is not known here"
                )

    def _type(self, what: str, text: str) -> str:
        """Return the type of a store; of a removed one its replacement, with a warning."""
        plain = re.sub(r"_?TYPE$|[_ -]", "", text, flags=re.IGNORECASE).lower()
        if plain in _TYPES:
            return _TYPES[plain]
        if plain in _REMOVED_TYPES:
            replacement, remark = _REMOVED_TYPES[plain]
            self._conversion.warn(
                f"{what}: type {text}",
                f"Universal Messaging 10.5 has removed it; it becomes {replacement}: {remark}",
            )
            return replacement
        self._conversion.warn(f"{what}: type {text!r:.80}", "it is not known; it becomes mixed")
        return "mixed"

    def _storage(
        self, what: str, properties: Element, attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        storage: dict[str, Any] = {}
        for name, text in sorted(properties.attributes.items()):
            attribute = _STORAGE.get(name)
            if attribute is None:
                is_multicast = name == "enablemulticast" and properties.truth(name)
                if is_multicast or name not in ("enablemulticast", "enablereadbuffering"):
                    self._conversion.warn(
                        f"{what}: {name} {text:.80}", "left out: it is not known here"
                    )
            elif attribute in _TRUTHS:
                storage[attribute] = properties.truth(name)
            elif (number := self._storage_number(what, properties, name)) is not None:
                storage[attribute] = number
        if not storage.get("enable_caching", True):
            storage.pop("cache_on_reload", None)
        if properties.text("enablereadbuffering").strip().lower() == "false":
            storage.pop("read_buffer_size", None)
        if attributes["type"] in ("reliable", "transient"):
            return {name: storage[name] for name in storage.keys() & _OF_MEMORY}
        return storage

    def _storage_number(self, what: str, properties: Element, name: str) -> int | None:
        """Return a number of a storage property; None for the default."""
        attribute = _STORAGE[name]
        if attribute in _ZERO_IS_DEFAULT and properties.integer(name) == 0:
            return None
        least, most = _STORAGE_BOUNDS[attribute]
        return self._number(what, properties, name, least=least, most=most)

    def _fit_to_engine(self, what: str, attributes: dict[str, Any]) -> None:
        """Leave out attributes without effect on the type or engine of a store."""
        if attributes["type"] == "transient":
            for name in ("keys", "engine"):
                if attributes.pop(name, None):
                    self._conversion.warn(
                        f"{what}: {name}", "left out: a transient store keeps no events"
                    )
        if attributes.get("engine") != "merge":
            return
        if list(attributes.get("keys", {}).values()) != [1]:
            self._conversion.warn(
                f"{what}: mergeEngine", "left out: it needs one publish key of depth 1"
            )
            del attributes["engine"]
            return
        storage = attributes.get("storage", {})
        kept = _OF_MEMORY | {name for name in storage if name.startswith("sync")}
        attributes["storage"] = {name: storage[name] for name in storage.keys() & kept}

    def _number(
        self, what: str, element: Element, name: str, *, least: int, most: int
    ) -> int | None:
        """Return a number of an attribute within its bounds; None if the element does not have
        it, and, with a warning, if it is not a number."""
        if name not in element.attributes:
            return None
        number = element.integer(name)
        text = f"{element.attributes[name]:.80}"
        if number is None:
            self._conversion.warn(f"{what}: {name} {text}", "left out: it is not a number")
            return None
        bounded = min(max(number, least), most)
        if bounded != number:
            self._conversion.warn(
                f"{what}: {name} {text}", f"written as {bounded}, the nearest value"
            )
        return bounded

    def _lead_dead_events(self) -> None:
        targets: dict[str, str] = {}
        for name, text in self._dead_event_stores.items():
            target, reason = self._find(text), ""
            if not target:
                reason = "it is not in the topology"
            elif self._conversion.stores[name].definition.type == "transient":
                reason = "a transient store keeps no events"
            if reason:
                self._conversion.warn(f"{name}: dead event store {text:.80}", f"left out: {reason}")
            else:
                targets[name] = target
        for name, reason in self._conversion.lead_dead_events(targets).items():
            self._conversion.warn(f"{name}: dead event store", f"left out: {reason}")

    def _find(self, text: str) -> str:
        """Return the name of a store of the topology; empty if there is none."""
        try:
            return self._names.get(destination_name(text), "")
        except Refused:
            return ""

    # --- durables and joins ---------------------------------------------------------------

    def _convert_durable(self, kind: Kind, channel: str, element: Element) -> None:
        name = element.text("name")
        what = f"durable {name:.255} of {channel}"
        if kind == "queue":
            self._conversion.warn(what, "left out: only channels have durables")
            return
        self._report_attributes(what, element, _DURABLE_ATTRIBUTES)
        type, selector = self._durable_type(what, element), element.text("selector", "filter")
        if selector and type == "exclusive":
            self._conversion.warn(
                f"{what}: selector {selector:.80}",
                "left out: each subscription to an exclusive durable brings its own",
            )
            selector = ""
        self._conversion.add_durable(
            channel,
            name,
            type,
            selector=selector,
            persistent=element.truth("persistent") if "persistent" in element.attributes else None,
            place=("durable", f"{name} of {channel}"),
        )

    def _durable_type(self, what: str, element: Element) -> str:
        """Return the type of a durable; of a removed one its replacement, with a warning."""
        flags = [flag for flag in ("shared", "serial", "priority") if element.truth(flag)]
        text = element.text("type", "durabletype") or "".join(flags[:1])
        plain = re.sub(r"_?(TYPE|DURABLE)$|[_ -]", "", text, flags=re.IGNORECASE).lower()
        if plain in _DURABLE_TYPES:
            return _DURABLE_TYPES[plain]
        replacement, remark = _REMOVED_DURABLE_TYPES.get(plain, ("exclusive", "it is not known"))
        self._conversion.warn(f"{what}: type {text:.80}", f"it becomes {replacement}: {remark}")
        return replacement

    def _convert_join(self, inside: str, element: Element) -> None:
        source = element.text(*_ENDS_OF_JOINS[0]) or inside
        destination = element.text(*_ENDS_OF_JOINS[1])
        what = f"join {source:.255} -> {destination:.255}"
        source_store, destination_store = self._find(source), self._find(destination)
        if "://" in destination or element.text(*_REMOTE):
            self._conversion.warn(what, "left out: joins stay within a realm")
            return
        if not source_store or not destination_store:
            missing = destination if source_store else source
            self._conversion.warn(what, f"left out: {missing:.255} is not in the topology")
            return
        is_archive = element.truth(*_ARCHIVAL)
        if is_archive and self._conversion.stores[destination_store].kind == "channel":
            self._conversion.warn(f"{what}: archival", "an ordinary join: only queues are archives")
            is_archive = False
        ends = (name for names in _ENDS_OF_JOINS for name in names)
        converted = [*ends, *_ARCHIVAL, "filter", "selector"]
        if element.text("hopcount") in ("", "10"):  # the limit of Penstock, too
            converted.append("hopcount")
        self._report_attributes(what, element, converted)
        self._conversion.add_join(
            source_store,
            destination_store,
            selector=element.text("filter", "selector"),
            archive=is_archive,
            place=("join", f"{source_store} -> {destination_store}"),
        )

    # --- access ---------------------------------------------------------------------------

    def _convert_acl(self, kind: str, name: str, element: Element) -> None:
        if not self._with_access:
            return
        what = f"rights on {kind} {name}".rstrip()
        subject = self._subject(what, element)
        if not subject:
            return
        rights: list[str] = []
        about = {"name", "host", "groupname", "group"}
        for attribute in sorted(element.attributes.keys() - about - _IMPLIED_RIGHTS):
            if not element.truth(attribute):
                continue
            if right := _STORE_RIGHTS[kind].get(attribute):
                rights.append(right)
            else:
                self._conversion.warn(
                    f"{what} of {subject}: {attribute}", "left out: there is no such right here"
                )
        self._conversion.grant(kind, name, subject, rights, place=("rights", f"of {subject}"))

    def _subject(self, what: str, element: Element) -> str:
        """Return the subject of an entry of an access control list; empty, with a warning, if no
        realm can have it."""
        group = element.text("groupname", "group")
        name, host = element.text("name"), element.text("host") or "*"
        if group:
            text = "*@*" if group.lower() == _EVERYONE else f"group:{group}"
        elif name != "*" and not self._add_user(name):
            self._conversion.warn(f"{what} of {name:.80}", "left out with its user")
            return ""
        else:
            text = f"{name}@{host}"
            if not _ADDRESS.fullmatch(host):
                self._conversion.warn(
                    f"{what} of {text:.300}",
                    "a realm compares hosts with addresses; write the address of the host, or *",
                )
        try:
            return str(parse_subject(text))
        except Refused as error:
            self._conversion.warn(what, f"left out: {error}")
            return ""

    def _add_user(self, name: str) -> bool:
        """Add a user once. Returns whether the topology has it."""
        if name not in self._subjects:
            self._subjects[name] = self._conversion.add_user(name, ("user", name))
        return self._subjects[name]

    def _convert_group(self, element: Element) -> None:
        name = element.text("groupname", "name")
        if name.lower() == _EVERYONE or not self._with_access:
            return
        members = [member.text("name", "username") for member in element.entries()]
        self._conversion.add_group(
            name,
            (member for member in members if self._add_user(member)),
            ("group", name),
        )


def _sort_key(element: Element) -> tuple[str, str]:
    """Return the key that sorts the elements of a realm: exports have no fixed order."""
    described = next((part for part in element.entries() if part.text("name")), element)
    return element.tag, described.text("name")
