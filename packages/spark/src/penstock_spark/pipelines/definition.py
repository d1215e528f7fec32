"""A pipeline: its sources and steps, read from a TOML file or made in Python.

Everything that can be known wrong without Spark and the realm is found here, with the file, the
step and the key in the message, and what would be right.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from penstock.client.connection.urls import parse_url, safe
from penstock_core.vocabulary.argument_errors import TOML, explain
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.step import Step, StreamStep
from penstock_spark.pipelines.steps import step_class
from penstock_spark.pipelines.steps.query import Query

T = TypeVar("T", bound=Struct)

LOCAL_MASTER: Final = "local[*]"
CHECKPOINTS: Final = "checkpoints"
RESTARTS: Final = 5
"""Default number of restarts in a row after failures whose cause may pass."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline. Made in Python it means the same as its file::

        Pipeline(
            name="flights",
            sources=(Source(name="flights", channel="flights"),),
            steps=(Query(name="late", sql="SELECT * FROM flights WHERE dep_delay > 60",
                         channel="late"),),
        )

    Raises ``InvalidArgument`` naming the source or step, the key, and what would be right.
    """

    name: str
    steps: tuple[Step, ...]
    sources: tuple[Source, ...] = ()
    url: str = ""
    """URL of the realm; empty: as the command line or ``PENSTOCK_URL`` says."""

    master: str = LOCAL_MASTER
    """Any Spark master, or ``sc://host`` for Spark Connect."""

    checkpoints: str = CHECKPOINTS
    """Folder with a folder for each pipeline and in it one for each step."""

    restarts: int = RESTARTS
    """Number of times in a row that a step is started again after a failure whose cause may
    pass."""

    spark: dict[str, str | int | bool] = field(default_factory=dict)
    """Further settings of Spark."""

    folder: Path = Path()
    """The folder that paths are relative to: that of the definition's file."""

    file: str = ""
    """The file that the definition was read from, for messages."""

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {safe(self.url)!r}, {self.file!r})"

    def __post_init__(self) -> None:
        with _naming(self.file):
            _check_name("name", self.name)
            if self.url:
                parse_url(self.url)
            if self.restarts < 0:
                raise InvalidArgument(f"restarts is {self.restarts}; 0 or more is needed")
            if not self.steps:
                raise InvalidArgument("it has no steps; add a [[step]] with a name and sql")
            _check_distinct("source", self.sources)
            _check_distinct("step", self.steps)
        by_name = self.by_name
        for step in self.steps:
            with _naming(self.file, f"step {step.name}"):
                _check_name("name", step.name)
                step.check(by_name, self.folder)
                self._check_cycle(step)
        with _naming(self.file):
            self._check_durables()
            for step in self.steps:
                if isinstance(step, StreamStep) and step.poison:
                    self.bound_source(step)

    def _check_cycle(self, step: Step) -> None:
        """Refuse a step that reads what it writes: each row would come again, for ever."""
        written = {channel for text in step.writes() if (channel := _channel_in(text))}
        for name in self._names_read(step):
            source = self.by_name.get(name)
            if source is None or not source.is_stream:
                continue
            names = (source.channel,) if isinstance(source.channel, str) else source.channel
            if both := written.intersection(names):
                raise InvalidArgument(
                    f"it writes the channel {', '.join(sorted(both))}, which it reads as source "
                    f"{name}: each row would be read again; write to another channel"
                )

    def _check_durables(self) -> None:
        """A durable has one position: two steps would take events from each other."""
        for source in self.sources:
            if not source.durable:
                continue
            readers = [step.name for step in self.steps if source.name in self._names_read(step)]
            if len(readers) > 1:
                raise InvalidArgument(
                    f"source {source.name}: durable {source.durable} can serve only one query, "
                    f"but steps {' and '.join(readers)} read it; give each step a source with its "
                    f"own durable"
                )

    def bound_source(self, step: Step) -> Source:
        """The source that a step with ``poison`` buries events of: its only stream.

        Raises ``InvalidArgument`` when there is none, or it is bound to no durable.
        """
        sources = self.by_name
        read = [sources[name] for name in self._names_read(step) if name in sources]
        streams = [source for source in read if source.is_stream]
        if len(streams) != 1 or not streams[0].durable:
            raise InvalidArgument(
                f"step {step.name}: poison needs a durable: the step must read one channel, "
                f"through a source with durable, but it reads"
                f" "
                f"{', '.join(f'{each.name} ({each.reads})' for each in streams) or 'none'}"
            )
        return streams[0]

    def _names_read(self, step: Step) -> Sequence[str]:
        if isinstance(step, Query) and step.python:
            return step.parameters(self.folder)
        return step.reads(self.by_name)

    @property
    def by_name(self) -> Mapping[str, Source]:
        """The sources by their names."""
        return {source.name: source for source in self.sources}

    def source(self, name: str) -> Source:
        """Raises ``InvalidArgument`` naming those there are."""
        return known_source(self.by_name, name)

    def step(self, name: str) -> Step:
        """Raises ``InvalidArgument`` naming those there are."""
        for step in self.steps:
            if step.name == name:
                return step
        names = tuple(step.name for step in self.steps)
        raise InvalidArgument(f"pipeline {self.name} has no step {name!r}: {nearest(name, names)}")

    def reads(self, step: Step) -> tuple[str, ...]:
        """A description for people of the sources that a step reads."""
        sources = self.by_name
        return tuple(
            sources[name].reads if name in sources else name for name in self._names_read(step)
        )

    def located(self, path: str) -> str:
        """A path made absolute; a URI stays as it is."""
        return path if _URI.match(path) else str((self.folder / path).absolute())

    @property
    def place(self) -> str:
        """The folder, or URI, of its checkpoints; each step has a folder in it."""
        return f"{self.located(self.checkpoints).rstrip('/')}/{self.name}"


def known_source(sources: Mapping[str, Source], name: str) -> Source:
    """Raises ``InvalidArgument`` naming the sources there are."""
    source = sources.get(name)
    if source is None:
        hint = nearest(name, tuple(sources)) if sources else "no [[source]] is defined"
        raise InvalidArgument(f"source is {name!r}, which is not a source: {hint}")
    return source


def load(path: Path | str) -> Pipeline:
    """The pipeline of a TOML file.

    Raises ``InvalidArgument`` naming the file, the source or step, the key, and what is right.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path}: this is not TOML: {error}") from error
    return parse(document, file=str(path), folder=path.absolute().parent)


def parse(document: Mapping[str, Any], *, file: str = "", folder: Path = Path()) -> Pipeline:
    """The pipeline of a document as TOML has it, with the keys ``source`` and ``step``."""
    top = dict(document)
    sources = tuple(
        converted(Source, table, "the source", file, f"source {_called(table, number)}")
        for number, table in enumerate(_tables(top, "source", file), 1)
    )
    steps = tuple(
        _step(table, file, f"step {_called(table, number)}")
        for number, table in enumerate(_tables(top, "step", file), 1)
    )
    with _naming(file):
        refuse_unknown(top, _TOP)
        top["spark"] = _flat(top.get("spark", {}))
    given = {**top, "steps": (), "sources": (), "file": file}
    known = {key: given[key] for key in _TOP_TYPED if key in given}
    shell = converted(_Shell, known, "the pipeline", file)
    return Pipeline(
        **msgspec.structs.asdict(shell), steps=steps, sources=sources, file=file, folder=folder
    )


class _Shell(Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys at the top of a definition."""

    name: str
    url: str = ""
    master: str = LOCAL_MASTER
    checkpoints: str = CHECKPOINTS
    restarts: int = RESTARTS
    spark: dict[str, str | int | bool] = field(default_factory=dict)


_TOP_TYPED: Final = tuple(known.encode_name for known in msgspec.structs.fields(_Shell))
_TOP: Final = (*_TOP_TYPED, "source", "step")


class _naming:  # noqa: N801 - reads as the statement it is
    """Errors inside get the file and the place put ahead."""

    def __init__(self, *places: str) -> None:
        self._place = ": ".join(place for place in places if place)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, InvalidArgument) and self._place:
            raise InvalidArgument(f"{self._place}: {error}") from error


def converted(kind: type[T], table: Mapping[str, Any], whole: str, *places: str) -> T:
    """A table of a definition as a struct; errors call it ``whole``.

    Raises ``InvalidArgument`` with ``places``, the key, and what would be right.
    """
    with _naming(*places):
        refuse_unknown(table, tuple(known.encode_name for known in msgspec.structs.fields(kind)))
        try:
            return msgspec.convert(table, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArgument(
                explain(error, table, kind=kind, whole=whole, words=TOML)
            ) from error


def refuse_unknown(table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ``InvalidArgument`` for a key that is not known, with the nearest that is."""
    for key in table:
        if key not in known:
            raise InvalidArgument(f"unknown key {key!r}: {nearest(key, tuple(known))}")


def _step(table: Mapping[str, Any], file: str, place: str) -> Step:
    given = dict(table)
    with _naming(file, place):
        kind = given.pop("kind", "query")
        if not isinstance(kind, str):
            raise InvalidArgument(f"kind must be a string, not {kind!r}")
        wanted = step_class(kind)
    return converted(wanted, given, "the step", file, place)


def _tables(top: dict[str, Any], key: str, file: str) -> list[dict[str, Any]]:
    found = top.pop(key, [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        with _naming(file):
            raise InvalidArgument(f"{key} is a list of tables, written [[{key}]]")
    return found


def _called(table: Mapping[str, Any], number: int) -> str:
    """The name of a source or step, or which one it is."""
    name = table.get("name")
    return name if isinstance(name, str) and name else str(number)


def _flat(settings: Any, ahead: str = "") -> dict[str, Any]:
    """Spark's settings: TOML reads ``spark.sql.x = 1`` as tables in tables."""
    if not isinstance(settings, dict):
        raise InvalidArgument("spark is a table, written [spark], of settings of Spark")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{ahead}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name if name.startswith("spark.") else f"spark.{name}"] = value
    return flat


def _channel_in(target: str) -> str:
    """The channel in what a step writes; empty if it is a table."""
    noun, _, name = target.partition(" ")
    return name if noun == "channel" else ""


def _check_name(key: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"{key} is {name!r}; it names a folder: it may have letters, digits, _, - and ., and "
            f"must not begin with - or ."
        )


def _check_distinct(noun: str, found: Sequence[Source] | Sequence[Step]) -> None:
    seen = set()
    for each in found:
        if each.name.lower() in seen:
            raise InvalidArgument(
                f"two of the {noun}s are called {each.name}; give each its own name"
            )
        seen.add(each.name.lower())
