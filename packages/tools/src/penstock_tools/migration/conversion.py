"""A topology under construction from the configuration of another broker, with everything that has
no exact counterpart here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.client.handles.definitions import definition_of
from penstock_core.access.rights import (
    checked_name,
    checked_rights,
    checked_user,
    parse_subject,
)
from penstock_core.api.access import Me
from penstock_core.api.requests import Kind
from penstock_core.bounds import (
    DURABLE_SELECTORS_CHARACTERS_MAX,
    MERGED_SELECTORS_WORK_MAX,
    SELECTORS_WORK_MAX,
)
from penstock_core.columns.selectors import Selector
from penstock_core.printable import on_one_line
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.argument_errors import JSON
from penstock_core.vocabulary.errors import InvalidArgument, Refused
from penstock_core.vocabulary.names import destination_name, durable_name
from penstock_server.bootstrap.registries import rules
from penstock_tools.topology.document import (
    Place,
    Topology,
    WantedDurable,
    WantedGrant,
    WantedGroup,
    WantedJoin,
    WantedStore,
    WantedUser,
)
from penstock_tools.topology.inventory import Found
from penstock_tools.topology.planning import plan

SOURCE_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes of a file that is converted."""
ENTRIES_MAX: Final = 100_000
"""Maximum number of entries of one kind in a file that is converted, and of access rights that
follow from it."""

DIFFERENCES_MAX: Final = 100_000
"""Maximum number of differences that a conversion lists; further ones are counted."""
_SUBJECT_CHARACTERS_MAX: Final = 1_000
_ADVICE_CHARACTERS_MAX: Final = 2_000

DEAD_EVENT_STORES_MAX: Final = 100
"""Maximum number of stores that dead events of a store pass, each the dead event store of the one
before."""


class Difference(Struct, frozen=True):
    """A part of the other broker's configuration that has no exact counterpart."""

    subject: str
    """The part, such as ``queue orders: x-max-priority 10``."""
    advice: str
    """The treatment of the part, and a better configuration."""
    is_loss: bool = True
    """Whether the realm behaves differently; False if nothing has to be done."""

    def __str__(self) -> str:
        word = "warning" if self.is_loss else "note"
        return on_one_line(f"{word}: {self.subject}: {self.advice}")


class SourceFile(Struct, frozen=True):
    """The converted file; it locates errors in the planning of its topology."""

    name: str

    def locate(self, place: Place, message: str) -> str:
        """Return the file and the entry at ``place``."""
        return f"{self.name}: {remark(place)}"


def remark(place: Place) -> str:
    """Return the entry of the converted file that a part of the topology comes from, for a comment
    above it."""
    return on_one_line(" ".join(str(step) for step in place))


def read_source(path: Path) -> bytes:
    """Return the content of a file that is converted. Raises ``InvalidArgument`` if it cannot be
    read or is larger than ``SOURCE_BYTES_MAX``."""
    try:
        with path.open("rb") as file:
            content = file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}") from error
    if len(content) > SOURCE_BYTES_MAX:
        raise InvalidArgument(
            f"{path} has more than {SOURCE_BYTES_MAX >> 20} MiB; export fewer objects at a time"
        )
    return content


def check_count(entries: int, what: str) -> None:
    """Raise ``InvalidArgument`` if a file has more than ``ENTRIES_MAX`` entries of a kind."""
    if entries > ENTRIES_MAX:
        raise InvalidArgument(
            f"the file has {entries:,} {what}; at most {ENTRIES_MAX:,} are converted at a time"
        )


class Conversion:
    """Collects the parts of a topology, each checked with the rules of a realm.

    A part that no realm can have is left out, and the reason becomes a difference.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._directory = Directory(replace(rules(), stores_max=0, durables_max=0))
        """An empty realm, whose rules check each store by itself."""
        self.differences: list[Difference] = []
        self.unlisted = 0
        """Number of further differences."""
        self.warnings = 0
        """Number of differences after which the realm behaves differently."""
        self.stores: dict[str, WantedStore] = {}
        """Channels and queues by canonical name."""
        self._durables: dict[tuple[str, str], WantedDurable] = {}
        self._selector_characters: Counter[str] = Counter()
        """Total length of the selectors of the durables of each channel, in characters."""
        self._join_selectors: dict[str, set[str]] = {}
        self._join_work: Counter[str] = Counter()
        """Number of comparisons, calculations and wildcards in the different selectors of the joins
        from a channel, by channel."""
        self._joins: dict[tuple[str, str], WantedJoin] = {}
        self._users: dict[str, WantedUser] = {}
        self._groups: dict[str, WantedGroup] = {}
        self._grants: dict[tuple[str, str, str], WantedGrant] = {}

    def warn(self, subject: str, advice: str) -> None:
        """Record a part that makes the realm behave differently, with advice."""
        self.warnings += 1
        self._record(subject, advice, is_loss=True)

    def note(self, subject: str, advice: str) -> None:
        """Record a part that needs no counterpart, with the reason."""
        self._record(subject, advice, is_loss=False)

    def _record(self, subject: str, advice: str, *, is_loss: bool) -> None:
        """Add a difference to the list, with texts of bounded length; count it if the list is
        full."""
        if len(self.differences) == DIFFERENCES_MAX:
            self.unlisted += 1
            return
        self.differences.append(
            Difference(
                subject[:_SUBJECT_CHARACTERS_MAX], advice[:_ADVICE_CHARACTERS_MAX], is_loss=is_loss
            )
        )

    # --- parts of the topology ------------------------------------------------------------

    def add_store(self, kind: Kind, name: str, attributes: Mapping[str, Any], place: Place) -> str:
        """Add a channel or queue, and return its canonical name; empty if it was left out."""
        what = remark(place)
        try:
            canonical = destination_name(name)
            definition = definition_of(attributes, kind, words=JSON)
            self._directory.decide_create(canonical, definition)
        except Refused as error:
            self.warn(what, f"left out: {error}")
            return ""
        if canonical in self.stores:
            owner = remark(self.stores[canonical].place)
            self.warn(
                what,
                f"left out: {owner} has the name {canonical} already, and channels and queues "
                "share their names; rename one of them",
            )
            return ""
        if canonical != name:
            self.warn(what, f"its name here is {canonical}; use it in clients, too")
        self.stores[canonical] = WantedStore(
            kind=kind, name=canonical, definition=definition, place=place
        )
        return canonical

    def lead_dead_events(self, targets: Mapping[str, str]) -> dict[str, str]:
        """Set the dead event stores of stores. A store whose dead events would come back to it, or
        would pass too many stores, gets none; the result has the reason of each such store."""
        remaining, reasons = dict(targets), {}
        for name in sorted(targets):
            path = [name]
            while len(path) <= DEAD_EVENT_STORES_MAX and (link := remaining.get(path[-1])):
                path.append(link)
                if link == name:
                    reasons[name] = f"dead events would come back: {' -> '.join(path)}"
                    break
            if len(path) > DEAD_EVENT_STORES_MAX:
                reasons[name] = f"dead events would pass over {DEAD_EVENT_STORES_MAX} stores"
            if name in reasons:
                del remaining[name]
        for name, target in remaining.items():
            self.change_store(name, dead_event_store=target)
        return reasons

    def change_store(self, name: str, **attributes: Any) -> None:
        """Change attributes of a store that was added before."""
        store = self.stores[name]
        self.stores[name] = replace(store, definition=replace(store.definition, **attributes))

    def add_durable(
        self,
        channel: str,
        name: str,
        type: str,
        *,
        selector: str,
        persistent: bool | None,
        place: Place,
    ) -> None:
        """Add a durable of a channel."""
        try:
            canonical = durable_name(name)
            selector = Selector(selector).text if selector else ""
        except Refused as error:
            self.warn(remark(place), f"left out: {error}")
            return
        if (channel, canonical) in self._durables:
            self.warn(remark(place), f"left out: channel {channel} has a durable of this name")
            return
        if self._selector_characters[channel] + len(selector) > DURABLE_SELECTORS_CHARACTERS_MAX:
            self.warn(
                remark(place),
                f"left out: the selectors of the durables of {channel} would have more than "
                f"{DURABLE_SELECTORS_CHARACTERS_MAX:,} characters together",
            )
            return
        self._selector_characters[channel] += len(selector)
        self._durables[channel, canonical] = WantedDurable(
            name=canonical, type=type, selector=selector, persistent=persistent, place=place
        )

    def add_join(
        self, source: str, destination: str, *, selector: str = "", archive: bool, place: Place
    ) -> None:
        """Add a join between two stores of the topology."""
        what = remark(place)
        if (source, destination) in self._joins:
            self.warn(what, "left out: there is a join between these two already")
            return
        if source == destination or self.stores[source].kind == "queue":
            self.warn(what, "left out: a join leads from a channel to another store")
            return
        try:
            parsed = Selector(selector) if selector else None
        except Refused as error:
            self.warn(what, f"left out: its selector is refused: {error}")
            return
        if parsed is not None and not self._has_room_for(source, parsed):
            self.warn(
                what,
                f"left out: the selectors of the joins from {source} would need too many "
                "comparisons for each event; spread the events over several channels",
            )
            return
        self._joins[source, destination] = WantedJoin(
            source=source,
            destination=destination,
            selector=parsed.text if parsed else "",
            archive=archive,
            place=place,
        )

    def _has_room_for(self, source: str, selector: Selector) -> bool:
        """Return whether a join from ``source`` may have a selector without exceeding the work for
        each event that a realm allows. Counts the selector if it may."""
        selectors = self._join_selectors.setdefault(source, set())
        if selector.text in selectors:
            return True
        merges = self.stores[source].definition.engine == "merge"
        work_max = MERGED_SELECTORS_WORK_MAX if merges else SELECTORS_WORK_MAX
        if self._join_work[source] + selector.work > work_max:
            return False
        selectors.add(selector.text)
        self._join_work[source] += selector.work
        return True

    def add_user(self, name: str, place: Place) -> bool:
        """Add a user. Returns whether the name is allowed."""
        try:
            checked_name(name, "user")
        except Refused as error:
            self.warn(remark(place), f"left out: {error}")
            return False
        self._users.setdefault(name, WantedUser(name=name, place=place))
        return True

    def add_group(self, name: str, members: Iterable[str], place: Place) -> bool:
        """Add a group; members that no realm can have are left out. Returns whether the name is
        allowed."""
        what = remark(place)
        try:
            checked_name(name, "group")
        except Refused as error:
            self.warn(what, f"left out: {error}")
            return False
        allowed = []
        for member in sorted(set(members)):
            try:
                allowed.append(checked_user(member))
            except Refused as error:
                self.warn(what, f"member {member} left out: {error}")
        self._groups[name] = WantedGroup(name=name, members=tuple(allowed), place=place)
        return True

    def grant(
        self, kind: str, name: str, subject: str, rights: Iterable[str], *, place: Place
    ) -> None:
        """Add rights of a subject on a resource to those that it has there."""
        key = (kind, name, str(parse_subject(subject)))
        former = self._grants.get(key)
        wanted = (*(former.rights if former else ()), *rights)
        if not wanted:
            return
        self._grants[key] = WantedGrant(
            kind=kind,
            name=name,
            subject=key[2],
            rights=checked_rights(kind, wanted),
            place=former.place if former else place,
        )
        check_count(len(self._grants), "access rights")

    # --- the result -----------------------------------------------------------------------

    def topology(self) -> Topology:
        """Return the topology in a fixed order. Raises ``InvalidArgument`` with the entry and the
        reason if no realm can have it."""
        durables: dict[str, list[WantedDurable]] = {}
        for (channel, _), durable in sorted(self._durables.items(), key=_first):
            durables.setdefault(channel, []).append(durable)
        topology = Topology(
            stores=tuple(
                replace(store, durables=tuple(durables.get(store.name, ())))
                for store in self._stores_in_order()
            ),
            joins=tuple(join for _, join in sorted(self._joins.items(), key=_first)),
            users=tuple(user for _, user in sorted(self._users.items(), key=_first)),
            groups=tuple(group for _, group in sorted(self._groups.items(), key=_first)),
            grants=tuple(grant for _, grant in sorted(self._grants.items(), key=_first)),
            origin=SourceFile(self.file),
        )
        plan(topology, Found(realm="", me=Me(user="", host="", mode="mandatory")))
        return topology

    def _stores_in_order(self) -> Iterator[WantedStore]:
        """Yield the stores by name, each after its dead event store: a plan creates them in this
        order."""
        done: set[str] = set()
        for name in sorted(self.stores):
            chain: list[str] = []
            link = name
            while link and link not in done:
                done.add(link)
                chain.append(link)
                link = self.stores[link].definition.dead_event_store
            yield from (self.stores[link] for link in reversed(chain))


def _first(item: tuple[Any, Any]) -> Any:
    """Return the key of a dictionary's item; the parts of a topology are sorted by it."""
    return item[0]
