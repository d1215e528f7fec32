"""Reads a topology from a TOML file. Whatever is wrong is refused with file, line and key, and what
would be right."""

from __future__ import annotations

import base64
import binascii
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.client.handles.definitions import backoff_of, definition_of
from penstock.client.reading.start_positions import StartLike
from penstock_core.access.rights import (
    checked_name,
    checked_rights,
    checked_user,
    parse_subject,
)
from penstock_core.api.requests import Kind
from penstock_core.columns.selectors import parse as parse_selector
from penstock_core.vocabulary.argument_errors import TOML, explain
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.definitions import Definition, attributes_of
from penstock_core.vocabulary.durable_attributes import (
    DurableAttributes,
    GivenDurableAttributes,
    durable_attributes,
)
from penstock_core.vocabulary.errors import InvalidArgument, Refused
from penstock_core.vocabulary.names import destination_name, durable_name
from penstock_server.settings import Settings
from penstock_tools.topology.document import (
    PipelineFile,
    Place,
    Topology,
    WantedDurable,
    WantedGrant,
    WantedGroup,
    WantedJoin,
    WantedStore,
    WantedUser,
    located,
)

T = TypeVar("T")

SECTIONS: Final = ("channel", "queue", "durable", "join", "user", "group", "grant", "pipeline")
EMBEDDED: Final = "base64:"
"""Begins descriptors that stand in the file itself."""
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATIONS: Final = frozenset(("ttl", "sync_batch_time", "ack_timeout"))
"""Attributes that are a number of milliseconds, or a text such as ``5m``."""

_DURATION: Final = re.compile(rf"(\d+)({'|'.join(UNITS_MS)})")
_KEY: Final = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")
_OF_STORAGE: Final = tuple(Definition().storage.__struct_fields__)
_OF_DURABLES: Final = DurableAttributes.__struct_fields__


def load(path: Path | str) -> Topology:
    """The topology of a TOML file. Raises ``InvalidArgument`` naming the file, the line, the key,
    and what would be right."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: this is not UTF-8: {error}") from error
    return parse(text, file=str(path), folder=path.absolute().parent)


def parse(text: str, *, file: str = "", folder: Path = Path()) -> Topology:
    """The topology of a text; paths in it are relative to ``folder``. Raises ``InvalidArgument``
    as :func:`load` does."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{file or 'the topology'}: this is not TOML: {error}") from error
    try:
        return _TopologyReading(
            document, LineFinder(text, file or "the topology"), folder
        ).topology()
    except _LocatedRefusal as error:
        raise InvalidArgument(str(error)) from error.__cause__


class LineFinder:
    """Finds the line of a part of a document; looks only when something is wrong."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.splitlines(keepends=True)

    def at(self, place: Place, said: str) -> str:
        """``file:line`` of the key that ``said`` is about, or else of the table it is in."""
        whole = self._cut(len(self._lines))[1]
        begins = _KEY.match(said)
        key = tuple(begins[0].split(".")) if begins else ()
        candidates = [key[:length] for length in range(len(key), 0, -1)]
        candidates += [(name,) for name in _named_in(said, _within(whole, place))]
        for inner in (*candidates, ()):
            if place + inner and _within(whole, place + inner) is not _ABSENT:
                return f"{self.file}:{self._line_of(place + inner)}"
        return self.file

    def _line_of(self, place: Place) -> int:
        """The first line of the statement that makes ``place``: a document may be cut at the end
        of each statement, and nowhere else."""
        low, high = 1, len(self._lines)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._has(middle, place) else (middle + 1, high)
        return self._cut(low - 1)[0] + 1

    def _has(self, count: int, place: Place) -> bool:
        return _within(self._cut(count)[1], place) is not _ABSENT

    def _cut(self, count: int) -> tuple[int, Any]:
        """The most of the first ``count`` lines that is a document, and this."""
        while True:
            try:
                return count, tomllib.loads("".join(self._lines[:count]))
            except (tomllib.TOMLDecodeError, RecursionError):
                count -= 1


_ABSENT: Final = object()


def _within(found: Any, place: Place) -> Any:
    """What a document has at a place, or ``_ABSENT``."""
    for step in place:
        if isinstance(step, int):
            if not isinstance(found, list) or step >= len(found):
                return _ABSENT
        elif not isinstance(found, dict) or step not in found:
            return _ABSENT
        found = found[step]
    return found


def _named_in(said: str, table: Any) -> list[str]:
    """The keys of a table that an error names, the first one first."""
    keys = table if isinstance(table, dict) else {}
    places = {
        key: found.start()
        for key in keys
        if (found := re.search(rf"\b{re.escape(key)}\b", said))
        or (found := re.search(rf"\b{re.escape(key.replace('_', ' '))}\b", said))
    }
    return sorted(places, key=lambda key: places[key])


class _TopologyReading:
    def __init__(self, document: Mapping[str, Any], lines: LineFinder, folder: Path) -> None:
        self._document = document
        self._lines = lines
        self._folder = folder

    def topology(self) -> Topology:
        self._check_sections()
        topology = Topology(
            stores=(
                *self._each("channel", lambda *given: self._store("channel", *given)),
                *self._each("queue", lambda *given: self._store("queue", *given)),
            ),
            durables=self._each("durable", self._pattern_durable),
            joins=self._each("join", self._join),
            users=self._each("user", self._user),
            groups=self._each("group", self._group),
            grants=self._each("grant", self._grant),
            pipelines=self._each("pipeline", self._pipeline),
            origin=self._lines,
        )
        self._refuse_twice(topology.stores, lambda each: f"store {each.name}")
        for store in topology.stores:
            self._refuse_twice(store.durables, lambda each: f"durable {each.name}")
        self._refuse_twice(topology.durables, lambda each: f"durable {each.name} {each.pattern}")
        self._refuse_given(topology)
        self._refuse_twice(topology.joins, lambda each: each.what)
        self._refuse_twice(topology.users, lambda each: f"user {each.name}")
        self._refuse_twice(topology.groups, lambda each: f"group {each.name}")
        self._refuse_twice(topology.grants, lambda each: each.what)
        return topology

    def _check_sections(self) -> None:
        for key in self._document:
            if key in Settings.__struct_fields__:
                raise self._refusal(
                    (key,),
                    "",
                    f"{key} is a setting of penstock serve, and no part of a topology; settings "
                    f"have a file of their own",
                )
            if key not in SECTIONS:
                hint = _nearest(key, [f"[[{each}]]" for each in SECTIONS], SECTIONS)
                raise self._refusal((key,), "", f"there is no section {key!r}; {hint}")

    def _each(self, section: str, read: Callable[[Mapping[str, Any], Place], T]) -> tuple[T, ...]:
        return self._tables(self._document.get(section, []), (section,), read)

    def _tables(
        self, tables: Any, place: Place, read: Callable[[Mapping[str, Any], Place], T]
    ) -> tuple[T, ...]:
        section = ".".join(str(each) for each in place if isinstance(each, str))
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise self._refusal(place, "", f"{section} is a list of tables, written [[{section}]]")
        found = []
        for index, table in enumerate(tables):
            at = (*place, index)
            name = next((table[key] for key in ("name", "subject", "source") if key in table), "")
            what = f"{place[-1]} {name}" if isinstance(name, str) and name else str(place[-1])
            try:
                found.append(read(table, at))
            except _LocatedRefusal:
                raise
            except Refused as error:
                raise self._refusal(at, what, str(error)) from error
        return tuple(found)

    def _refusal(self, place: Place, what: str, said: str) -> _LocatedRefusal:
        return _LocatedRefusal(located(self._lines, place, what, said=said))

    def _refuse_twice(self, found: Sequence[T], named: Callable[[T], str]) -> None:
        seen: set[str] = set()
        for each in found:
            what = named(each)
            if what in seen:
                place: Place = each.place  # type: ignore[attr-defined]  # all of them have it
                raise self._refusal(place, "", f"{what} stands here a second time; leave one out")
            seen.add(what)

    def _refuse_given(self, topology: Topology) -> None:
        """A channel's own durable cannot be one that a pattern gives to it."""
        for store in topology.stores:
            for own in store.durables:
                for over in topology.durables:
                    if over.name == own.name and choice_of(over.pattern).takes(store.name):
                        raise self._refusal(
                            own.place,
                            f"durable {own.name} of {store.name}",
                            f"the pattern {over.pattern} gives it to the channel; leave one out",
                        )

    # --- one table each ------------------------------------------------------------------

    def _store(self, kind: Kind, table: Mapping[str, Any], place: Place) -> WantedStore:
        own = ("durable",) if kind == "channel" else ()
        _refuse_unknown(table, ("name", *sorted(attributes_of(kind)), *own))
        name = destination_name(_text(table, "name"))
        given = {key: value for key, value in table.items() if key not in ("name", "durable")}
        return WantedStore(
            kind=kind,
            name=name,
            definition=definition_of(self._attributes(given), kind, words=TOML),
            durables=self._tables(table.get("durable", []), (*place, "durable"), self._durable),
            place=place,
        )

    def _attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        storage = given.get("storage", {})
        if not isinstance(storage, dict):
            raise InvalidArgument(
                f'storage must be a table such as {{ sync = "none" }}, not {storage!r}'
            )
        _refuse_unknown(storage, _OF_STORAGE, "storage.")
        found = {key: _duration(key, value) for key, value in given.items()}
        if storage:
            found["storage"] = {
                key: _duration(key, value, "storage.") for key, value in storage.items()
            }
        if "backoff" in found:
            found["backoff"] = _backoff(found["backoff"])
        if "descriptors" in found:
            found["descriptors"] = self._descriptors(found["descriptors"])
        if isinstance(dead := found.get("dead_event_store"), str) and dead:
            found["dead_event_store"] = destination_name(dead)
        return found

    def _descriptors(self, given: object) -> bytes:
        if not isinstance(given, str):
            raise InvalidArgument(f"descriptors must be the path of a file, not {given!r}")
        try:
            if given.startswith(EMBEDDED):
                return base64.b64decode(given.removeprefix(EMBEDDED), validate=True)
            return (self._folder / given).read_bytes() if given else b""
        except binascii.Error as error:
            raise InvalidArgument(
                f"descriptors: what follows {EMBEDDED} is wrong: {error}"
            ) from error
        except OSError as error:
            raise InvalidArgument(
                f"descriptors: {given} cannot be read: {error.strerror or error}"
            ) from error

    def _pattern_durable(self, table: Mapping[str, Any], place: Place) -> WantedDurable:
        rest = {key: value for key, value in table.items() if key != "pattern"}
        choice = _about("pattern", lambda: choice_of(_text(table, "pattern")))
        if not choice.patterns:
            raise InvalidArgument(
                f"pattern: {choice.text!r} names channels, and no pattern; write the durable as "
                "[[channel.durable]] under each of them"
            )
        return replace(self._durable(rest, place), pattern=choice.text)

    def _durable(self, table: Mapping[str, Any], place: Place) -> WantedDurable:
        known = ("name", "type", "selector", "start", "persistent", *_OF_DURABLES)
        _refuse_unknown(table, known)
        table = {key: _duration(key, value) for key, value in table.items()}
        if "backoff" in table:
            table["backoff"] = _backoff(table["backoff"])
        shape = _converted(table, _DurableTable)
        _check_selector(shape.selector)
        return WantedDurable(
            name=durable_name(_text(table, "name")),
            type=shape.type,
            selector=shape.selector,
            start=_start(shape.start),
            persistent=shape.persistent,
            attributes=durable_attributes(shape),
            place=place,
        )

    def _join(self, table: Mapping[str, Any], place: Place) -> WantedJoin:
        _refuse_unknown(table, ("source", "destination", "selector", "archive"))
        shape = _converted(table, _JoinTable)
        _check_selector(shape.selector)
        return WantedJoin(
            source=destination_name(shape.source),
            destination=destination_name(shape.destination),
            selector=shape.selector,
            archive=shape.archive,
            place=place,
        )

    def _user(self, table: Mapping[str, Any], place: Place) -> WantedUser:
        if "password" in table:
            raise InvalidArgument(
                "password: a topology has no secrets; leave it out, and set it with: "
                "penstock user password NAME"
            )
        _refuse_unknown(table, ("name",))
        return WantedUser(name=checked_name(_text(table, "name"), "user"), place=place)

    def _group(self, table: Mapping[str, Any], place: Place) -> WantedGroup:
        _refuse_unknown(table, ("name", "members"))
        name = checked_name(_text(table, "name"), "group")
        members = _texts(table, "members")
        return WantedGroup(
            name=name, members=tuple(sorted(map(checked_user, members))), place=place
        )

    def _grant(self, table: Mapping[str, Any], place: Place) -> WantedGrant:
        of = ("channel", "queue", "topic")
        _refuse_unknown(table, (*of, "subject", "rights"))
        kinds = [kind for kind in of if kind in table]
        if len(kinds) > 1:
            raise InvalidArgument(
                f"{kinds[1]}: give a channel, a queue or a topic, not two; none: the realm"
            )
        kind = kinds[0] if kinds else "realm"
        return WantedGrant(
            kind=kind,
            name=_about(kind, lambda: resource_name(kind, _text(table, kind))) if kinds else "",
            subject=_about("subject", lambda: str(parse_subject(_text(table, "subject")))),
            rights=_about("rights", lambda: checked_rights(kind, (*_texts(table, "rights"),))),
            place=place,
        )

    def _pipeline(self, table: Mapping[str, Any], place: Place) -> PipelineFile:
        _refuse_unknown(table, ("file",))
        path = self._folder / _text(table, "file")
        if not path.is_file():
            raise InvalidArgument(f"file: there is no file {path}; paths begin at this file's")
        return PipelineFile(path=path, place=place)


class _LocatedRefusal(InvalidArgument):
    """Says already where it is."""


class _DurableTable(GivenDurableAttributes, frozen=True, kw_only=True):
    name: str
    type: str = "shared"
    selector: str = ""
    start: Any = "earliest"
    persistent: bool | None = None


class _JoinTable(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    destination: str
    selector: str = ""
    archive: bool = False


def _converted(table: Mapping[str, Any], shape: type[T]) -> T:
    try:
        return msgspec.convert(table, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        said = explain(error, table, kind=shape, whole="the table", words=TOML)
        raise InvalidArgument(said) from error


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    for key in table:
        if key not in known:
            hint = _nearest(key, known, known)
            raise InvalidArgument(f"{prefix}{key} is not a key here; {hint}")


def _nearest(given: str, shown: Iterable[str], known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(shown)}"


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        has = f", not {value!r}" if key in table else ", which is missing"
        raise InvalidArgument(f"{key} must be a text{has}")
    return value


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidArgument(f"{key} must be a list of texts, not {value!r}")
    return value


def _duration(key: str, value: Any, prefix: str = "") -> Any:
    if key not in DURATIONS or not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value)
    if found is None:
        raise InvalidArgument(
            f"{prefix}{key} is {value!r}; give milliseconds, or a text such as 500ms, 10s, 5m, 2h "
            f"or 1d"
        )
    return int(found[1]) * UNITS_MS[found[2]]


def _backoff(given: Any) -> Backoff | None:
    if not isinstance(given, dict):
        raise InvalidArgument(
            f'backoff must be a table such as {{ first = "1s", most = "5m" }}, not {given!r}'
        )
    return backoff_of(given, words=TOML)


def _start(given: Any) -> StartLike:
    """Where a durable begins: an id, a time, ``earliest`` or ``latest``."""
    if isinstance(given, datetime):
        return given if given.tzinfo else given.replace(tzinfo=UTC)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if given == "earliest":
        return "earliest"
    if given == "latest":
        return "latest"
    raise InvalidArgument(
        f'start is {given!r}; give "earliest", "latest", an event id such as 42, or a time such '
        f"as 2026-05-04T12:00:00Z"
    )


def _check_selector(text: str) -> None:
    if text:
        _about("selector", lambda: parse_selector(text))


def _about(key: str, read: Callable[[], T]) -> T:
    """What ``read`` gives; its refusals begin with the key that they are about."""
    try:
        return read()
    except Refused as error:
        said = str(error)
        raise InvalidArgument(said if said.startswith(key) else f"{key}: {said}") from error


def resource_name(kind: str, name: str) -> str:
    """What a grant is on, in the form in which the realm keeps it: a name, ``folder/*`` or ``*``,
    or a topic filter."""
    if name == "*" or kind == "topic":
        return name
    folder, star, rest = name.rpartition("/*")
    return f"{destination_name(folder)}/*" if star and not rest else destination_name(name)
