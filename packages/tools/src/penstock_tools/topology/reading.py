"""Reads a topology from a TOML file. Each error names the file, the line and the key, and what is
allowed."""

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
from penstock_core.columns.events.durations import whole_ms
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
"""Prefix of descriptors that are embedded in the file."""
DURATIONS: Final = frozenset(("ttl", "sync_batch_time", "ack_timeout"))
"""Attributes that take a number of milliseconds or a text such as ``5m``."""

_KEY: Final = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")
"""A key, or the keys of a nested value joined by dots, at the start of an error message."""
_STORAGE_KEYS: Final = tuple(Definition().storage.__struct_fields__)
_DURABLE_KEYS: Final = DurableAttributes.__struct_fields__


def load(path: Path | str) -> Topology:
    """Return the topology of a TOML file. Raises ``InvalidArgument`` with the file, the line, the
    key, and what is allowed."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: this is not UTF-8: {error}") from error
    return parse(text, file=str(path), folder=path.absolute().parent)


def parse(text: str, *, file: str = "", folder: Path = Path()) -> Topology:
    """Return the topology of a TOML text; paths in it are relative to ``folder``. Raises
    ``InvalidArgument`` as :func:`load` does."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{file or 'the topology'}: this is not TOML: {error}") from error
    try:
        return _TopologyReading(
            document, LineFinder(text, file or "the topology"), folder
        ).topology()
    except _LocatedError as error:
        raise InvalidArgument(str(error)) from error.__cause__


class LineFinder:
    """Finds the line of a value in a TOML document, which ``tomllib`` does not report. The search
    parses prefixes of the text, so it runs only when there is an error to report."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.splitlines(keepends=True)

    def locate(self, place: Place, message: str) -> str:
        """Return ``file:line`` of the key that ``message`` is about in the table at ``place``, or
        of the table itself if the message names none of its keys."""
        document = self._parse_prefix(len(self._lines))[1]
        # A key at the start of the message comes first, then keys that the message mentions, then
        # the table itself.
        match = _KEY.match(message)
        key = tuple(match[0].split(".")) if match else ()
        candidates = [key[:length] for length in range(len(key), 0, -1)]
        candidates += [(name,) for name in _keys_in_message(message, _value_at(document, place))]
        for inner in (*candidates, ()):
            if place + inner and _value_at(document, place + inner) is not _ABSENT:
                return f"{self.file}:{self._find_line(place + inner)}"
        return self.file

    def _find_line(self, place: Place) -> int:
        """Return the first line of the statement that defines ``place``."""
        # A prefix of the document parses only if it ends with a statement. The shortest prefix
        # that contains the place is found by bisection.
        low, high = 1, len(self._lines)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._contains(middle, place) else (middle + 1, high)
        return self._parse_prefix(low - 1)[0] + 1

    def _contains(self, count: int, place: Place) -> bool:
        """Return whether the first ``count`` lines define ``place``."""
        return _value_at(self._parse_prefix(count)[1], place) is not _ABSENT

    def _parse_prefix(self, count: int) -> tuple[int, Any]:
        """Return the longest prefix of the first ``count`` lines that parses: its line count and
        its content."""
        while True:
            try:
                return count, tomllib.loads("".join(self._lines[:count]))
            except (tomllib.TOMLDecodeError, RecursionError):
                count -= 1


_ABSENT: Final = object()
"""Result of :func:`_value_at` if there is no value."""


def _value_at(value: Any, place: Place) -> Any:
    """Return the value of a document at a place, or ``_ABSENT``."""
    for step in place:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return _ABSENT
        elif not isinstance(value, dict) or step not in value:
            return _ABSENT
        value = value[step]
    return value


def _keys_in_message(message: str, table: Any) -> list[str]:
    """Return the keys of a table that occur in an error message, in the order of the message."""
    keys = table if isinstance(table, dict) else {}
    places = {
        key: match.start()
        for key in keys
        if (match := re.search(rf"\b{re.escape(key)}\b", message))
        or (match := re.search(rf"\b{re.escape(key.replace('_', ' '))}\b", message))
    }
    return sorted(places, key=lambda key: places[key])


class _TopologyReading:
    """Converts a TOML document to a topology."""

    def __init__(self, document: Mapping[str, Any], lines: LineFinder, folder: Path) -> None:
        self._document = document
        self._lines = lines
        self._folder = folder

    def topology(self) -> Topology:
        """Return the topology. Raises ``_LocatedError`` at the first mistake."""
        self._check_sections()
        topology = Topology(
            stores=(
                *self._read_section("channel", lambda *table: self._read_store("channel", *table)),
                *self._read_section("queue", lambda *table: self._read_store("queue", *table)),
            ),
            durables=self._read_section("durable", self._read_pattern_durable),
            joins=self._read_section("join", self._read_join),
            users=self._read_section("user", self._read_user),
            groups=self._read_section("group", self._read_group),
            grants=self._read_section("grant", self._read_grant),
            pipelines=self._read_section("pipeline", self._read_pipeline),
            origin=self._lines,
        )
        self._refuse_duplicates(topology.stores, lambda item: f"store {item.name}")
        for store in topology.stores:
            self._refuse_duplicates(store.durables, lambda item: f"durable {item.name}")
        self._refuse_duplicates(
            topology.durables, lambda item: f"durable {item.name} {item.pattern}"
        )
        self._refuse_pattern_conflicts(topology)
        self._refuse_duplicates(topology.joins, lambda item: item.what)
        self._refuse_duplicates(topology.users, lambda item: f"user {item.name}")
        self._refuse_duplicates(topology.groups, lambda item: f"group {item.name}")
        self._refuse_duplicates(topology.grants, lambda item: item.what)
        return topology

    def _check_sections(self) -> None:
        """Raise if a key at the top of the document is not a section."""
        for key in self._document:
            if key in Settings.__struct_fields__:
                raise self._error(
                    (key,),
                    "",
                    f"{key} is a setting of penstock serve, not a part of a topology; put it into "
                    f"the settings file",
                )
            if key not in SECTIONS:
                hint = _suggest_key(key, [f"[[{section}]]" for section in SECTIONS], SECTIONS)
                raise self._error((key,), "", f"{key!r} is not a section of a topology; {hint}")

    def _read_section(
        self, section: str, read: Callable[[Mapping[str, Any], Place], T]
    ) -> tuple[T, ...]:
        return self._read_tables(self._document.get(section, []), (section,), read)

    def _read_tables(
        self, tables: Any, place: Place, read: Callable[[Mapping[str, Any], Place], T]
    ) -> tuple[T, ...]:
        section = ".".join(str(part) for part in place if isinstance(part, str))
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._error(
                place, "", f"{section} must be a list of tables, written [[{section}]]"
            )
        parsed = []
        for index, table in enumerate(tables):
            table_place = (*place, index)
            # The name is part of error texts. It is not checked yet, so it may be of any type.
            name = next((table[key] for key in ("name", "subject", "source") if key in table), "")
            what = f"{place[-1]} {name}" if isinstance(name, str) and name else str(place[-1])
            try:
                parsed.append(read(table, table_place))
            except _LocatedError:  # of a nested table
                raise
            except Refused as error:
                raise self._error(table_place, what, str(error)) from error
        return tuple(parsed)

    def _error(self, place: Place, what: str, message: str) -> _LocatedError:
        return _LocatedError(located(self._lines, place, what, message=message))

    def _refuse_duplicates(self, items: Sequence[T], describe: Callable[[T], str]) -> None:
        """Raise if two items have the same description."""
        seen: set[str] = set()
        for item in items:
            what = describe(item)
            if what in seen:
                place: Place = item.place  # type: ignore[attr-defined]  # all of them have it
                raise self._error(place, "", f"{what} is defined twice; remove one definition")
            seen.add(what)

    def _refuse_pattern_conflicts(self, topology: Topology) -> None:
        """Raise if a durable of a channel is also defined by a pattern that covers the channel."""
        for store in topology.stores:
            for durable in store.durables:
                for pattern_durable in topology.durables:
                    if pattern_durable.name == durable.name and choice_of(
                        pattern_durable.pattern
                    ).takes(store.name):
                        raise self._error(
                            durable.place,
                            f"durable {durable.name} of {store.name}",
                            f"the channel has it from pattern {pattern_durable.pattern}, too; "
                            f"remove one of them",
                        )

    # --- a function for each kind of table -----------------------------------------------

    def _read_store(self, kind: Kind, table: Mapping[str, Any], place: Place) -> WantedStore:
        nested = ("durable",) if kind == "channel" else ()
        _refuse_unknown(table, ("name", *sorted(attributes_of(kind)), *nested))
        name = destination_name(_text(table, "name"))
        settings = {key: value for key, value in table.items() if key not in ("name", "durable")}
        return WantedStore(
            kind=kind,
            name=name,
            definition=definition_of(self._read_attributes(settings), kind, words=TOML),
            durables=self._read_tables(
                table.get("durable", []), (*place, "durable"), self._read_durable
            ),
            place=place,
        )

    def _read_attributes(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        storage = settings.get("storage", {})
        if not isinstance(storage, dict):
            raise InvalidArgument(
                f'storage must be a table such as {{ sync = "none" }}, not {storage!r}'
            )
        _refuse_unknown(storage, _STORAGE_KEYS, "storage.")
        attributes = {key: _duration(key, value) for key, value in settings.items()}
        if storage:
            attributes["storage"] = {
                key: _duration(key, value, "storage.") for key, value in storage.items()
            }
        if "backoff" in attributes:
            attributes["backoff"] = _backoff(attributes["backoff"])
        if "descriptors" in attributes:
            attributes["descriptors"] = self._read_descriptors(attributes["descriptors"])
        if isinstance(target := attributes.get("dead_event_store"), str) and target:
            attributes["dead_event_store"] = destination_name(target)
        return attributes

    def _read_descriptors(self, value: object) -> bytes:
        """Return the descriptors of a channel, from a file or from the text itself."""
        if not isinstance(value, str):
            raise InvalidArgument(f"descriptors must be the path of a file, not {value!r}")
        try:
            if value.startswith(EMBEDDED):
                return base64.b64decode(value.removeprefix(EMBEDDED), validate=True)
            return (self._folder / value).read_bytes() if value else b""
        except binascii.Error as error:
            raise InvalidArgument(
                f"descriptors: the text after {EMBEDDED} is not valid base64: {error}"
            ) from error
        except OSError as error:
            raise InvalidArgument(
                f"descriptors: {value} cannot be read: {error.strerror or error}"
            ) from error

    def _read_pattern_durable(self, table: Mapping[str, Any], place: Place) -> WantedDurable:
        """Return a durable of a pattern: the same keys as under a channel, and the pattern."""
        durable_table = {key: value for key, value in table.items() if key != "pattern"}
        choice = _prefix_errors("pattern", lambda: choice_of(_text(table, "pattern")))
        if not choice.patterns:
            raise InvalidArgument(
                f"pattern: {choice.text!r} names channels and is not a pattern; write the durable "
                "as [[channel.durable]] under each channel"
            )
        return replace(self._read_durable(durable_table, place), pattern=choice.text)

    def _read_durable(self, table: Mapping[str, Any], place: Place) -> WantedDurable:
        allowed = ("name", "type", "selector", "start", "persistent", *_DURABLE_KEYS)
        _refuse_unknown(table, allowed)
        table = {key: _duration(key, value) for key, value in table.items()}
        if "backoff" in table:
            table["backoff"] = _backoff(table["backoff"])
        values = _convert(table, _DurableTable)
        _check_selector(values.selector)
        return WantedDurable(
            name=durable_name(_text(table, "name")),
            type=values.type,
            selector=values.selector,
            start=_start(values.start),
            persistent=values.persistent,
            attributes=durable_attributes(values),
            place=place,
        )

    def _read_join(self, table: Mapping[str, Any], place: Place) -> WantedJoin:
        _refuse_unknown(table, ("source", "destination", "selector", "archive"))
        values = _convert(table, _JoinTable)
        _check_selector(values.selector)
        return WantedJoin(
            source=destination_name(values.source),
            destination=destination_name(values.destination),
            selector=values.selector,
            archive=values.archive,
            place=place,
        )

    def _read_user(self, table: Mapping[str, Any], place: Place) -> WantedUser:
        if "password" in table:
            raise InvalidArgument(
                "password: a topology has no secrets; leave it out, and set it with: "
                "penstock user password NAME"
            )
        _refuse_unknown(table, ("name",))
        return WantedUser(name=checked_name(_text(table, "name"), "user"), place=place)

    def _read_group(self, table: Mapping[str, Any], place: Place) -> WantedGroup:
        _refuse_unknown(table, ("name", "members"))
        name = checked_name(_text(table, "name"), "group")
        members = _texts(table, "members")
        return WantedGroup(
            name=name, members=tuple(sorted(map(checked_user, members))), place=place
        )

    def _read_grant(self, table: Mapping[str, Any], place: Place) -> WantedGrant:
        resource_kinds = ("channel", "queue", "topic")
        _refuse_unknown(table, (*resource_kinds, "subject", "rights"))
        kinds = [kind for kind in resource_kinds if kind in table]
        if len(kinds) > 1:
            raise InvalidArgument(
                f"{kinds[1]}: a grant names one channel, one queue or one topic, and {kinds[0]} is "
                f"given, too; leave all out for a grant on the realm"
            )
        kind = kinds[0] if kinds else "realm"
        return WantedGrant(
            kind=kind,
            name=_prefix_errors(kind, lambda: resource_name(kind, _text(table, kind)))
            if kinds
            else "",
            subject=_prefix_errors("subject", lambda: str(parse_subject(_text(table, "subject")))),
            rights=_prefix_errors(
                "rights", lambda: checked_rights(kind, (*_texts(table, "rights"),))
            ),
            place=place,
        )

    def _read_pipeline(self, table: Mapping[str, Any], place: Place) -> PipelineFile:
        _refuse_unknown(table, ("file",))
        path = self._folder / _text(table, "file")
        if not path.is_file():
            raise InvalidArgument(
                f"file: {path} does not exist; a path is relative to the folder of the topology"
            )
        return PipelineFile(path=path, place=place)


class _LocatedError(InvalidArgument):
    """An error whose text already contains the file and the line."""


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


def _convert(table: Mapping[str, Any], shape: type[T]) -> T:
    """Return a table as a struct. Raises ``InvalidArgument`` that names the wrong key."""
    try:
        return msgspec.convert(table, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        message = explain(error, table, kind=shape, whole="the table", words=TOML)
        raise InvalidArgument(message) from error


def _refuse_unknown(table: Mapping[str, Any], allowed: Sequence[str], prefix: str = "") -> None:
    """Raise ``InvalidArgument`` if a table has a key that is not allowed in it."""
    for key in table:
        if key not in allowed:
            hint = _suggest_key(key, allowed, allowed)
            raise InvalidArgument(f"{prefix}{key} is not a key here; {hint}")


def _suggest_key(value: str, shown: Iterable[str], allowed: Sequence[str]) -> str:
    """Return a hint for an unknown key: the allowed key that resembles it, or all of them as
    ``shown``."""
    near = difflib.get_close_matches(value, allowed, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed are {', '.join(shown)}"


def _text(table: Mapping[str, Any], key: str) -> str:
    """Return a text that a table must have."""
    value = table.get(key)
    if not isinstance(value, str) or not value:
        if key not in table:
            raise InvalidArgument(f"{key} is missing; it must be a text")
        raise InvalidArgument(f"{key} must be a text that is not empty, not {value!r}")
    return value


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    """Return the list of texts of a key; empty if the table does not have the key."""
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidArgument(f"{key} must be a list of texts, not {value!r}")
    return value


def _duration(key: str, value: Any, prefix: str = "") -> Any:
    """Return a duration as milliseconds; the value of any other key is returned unchanged."""
    if key not in DURATIONS or not isinstance(value, str):
        return value
    ms = whole_ms(value)
    if isinstance(ms, str):
        raise InvalidArgument(
            f"{prefix}{key} is {value!r}; give milliseconds, or a text such as 500ms, 10s, 5m, 2h "
            f"or 1d"
        )
    return ms


def _backoff(value: Any) -> Backoff | None:
    if not isinstance(value, dict):
        raise InvalidArgument(
            f'backoff must be a table such as {{ first = "1s", most = "5m" }}, not {value!r}'
        )
    return backoff_of(value, words=TOML)


def _start(value: Any) -> StartLike:
    """Return the start of a durable: an event id, a time, ``earliest`` or ``latest``."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    raise InvalidArgument(
        f'start is {value!r}; give "earliest", "latest", an event id such as 42, or a time such '
        f"as 2026-05-04T12:00:00Z"
    )


def _check_selector(text: str) -> None:
    if text:
        _prefix_errors("selector", lambda: parse_selector(text))


def _prefix_errors(key: str, read: Callable[[], T]) -> T:
    """Return the result of ``read``; prefix the text of its errors with the key."""
    try:
        return read()
    except Refused as error:
        message = str(error)
        raise InvalidArgument(
            message if message.startswith(key) else f"{key}: {message}"
        ) from error


def resource_name(kind: str, name: str) -> str:
    """Return the resource name of a grant in the form that the realm stores: a name, ``folder/*``,
    ``*`` or a topic filter."""
    if name == "*" or kind == "topic":
        return name
    folder, separator, rest = name.rpartition("/*")
    return f"{destination_name(folder)}/*" if separator and not rest else destination_name(name)
