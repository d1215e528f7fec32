"""The definition of a pipeline: its sources and steps, read from a TOML file or made in Python.

This module finds all mistakes that can be found without Spark and the realm. The errors name the
file, the step, the key, and the allowed values.
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
"""Default for the largest number of restarts in a row after transient failures."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline. In Python, the equivalent of a file is::

        Pipeline(
            name="flights",
            sources=(Source(name="flights", channel="flights"),),
            steps=(Query(name="late", sql="SELECT * FROM flights WHERE dep_delay > 60",
                         channel="late"),),
        )

    Raises ``InvalidArgument`` naming the source or step, the key, and the allowed values.
    """

    name: str
    steps: tuple[Step, ...]
    sources: tuple[Source, ...] = ()
    url: str = ""
    """URL of the realm. Empty means the URL of the command line or of ``PENSTOCK_URL``."""

    master: str = LOCAL_MASTER
    """Spark's master URL, or ``sc://host`` for Spark Connect."""

    checkpoints: str = CHECKPOINTS
    """Path or URI of the folder for checkpoints. It contains a folder for each pipeline, with a
    folder for each step."""

    restarts: int = RESTARTS
    """Largest number of times in a row that a step is started again after a transient failure."""

    spark: dict[str, str | int | bool] = field(default_factory=dict)
    """Further settings of Spark."""

    folder: Path = Path()
    """The folder of the definition's file. Paths in the definition are relative to it."""

    file: str = ""
    """Path of the definition's file, for error texts; empty for a pipeline made in Python."""

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {safe(self.url)!r}, {self.file!r})"

    def __post_init__(self) -> None:
        with _naming(self.file):
            _check_name("name", self.name)
            if self.url:
                parse_url(self.url)
            if self.restarts < 0:
                raise InvalidArgument(f"restarts is {self.restarts}; it must be 0 or more")
            if not self.steps:
                raise InvalidArgument(
                    "the pipeline has no steps; add a [[step]] with a name and sql"
                )
            _check_distinct("source", self.sources)
            _check_distinct("step", self.steps)
        by_name = self.by_name
        for step in self.steps:
            with _naming(self.file, f"step {step.name}"):
                _check_name("name", step.name)
                step.check(by_name, self.folder)
        self._check_cycles()
        with _naming(self.file):
            self._check_durables()
            for step in self.steps:
                if isinstance(step, StreamStep) and step.poison:
                    self.bound_source(step)

    def _check_cycles(self) -> None:
        """Raise ``InvalidArgument`` if a step reads a channel that the step itself writes, directly
        or through other steps: the step would read its own rows without end."""
        read = {step.name: self._channels_read(step) for step in self.steps}
        for step in self.steps:
            cycle = self._cycle_through(step, read)
            if cycle is not None:
                with _naming(self.file, f"step {step.name}"):
                    raise InvalidArgument(
                        f"{cycle}: each row would be read again; write to another channel"
                    )

    def _cycle_through(self, step: Step, read: Mapping[str, Mapping[str, str]]) -> str | None:
        """Describe a path on which the rows of ``step`` return to the step; None without one.

        ``read`` has, for each step, the name of the source for each channel that the step reads.
        """
        pending: list[tuple[Step, tuple[str, ...]]] = [(step, ())]
        visited: set[str] = set()
        while pending:
            writer, path = pending.pop()
            for channel in filter(None, map(_channel_in, writer.writes())):
                longer_path = (*path, f"{writer.name} writes the channel {channel}")
                if source := read[step.name].get(channel):
                    return f"{', '.join(longer_path)}, which {step.name} reads as source {source}"
                readers = [reader for reader in self.steps if channel in read[reader.name]]
                pending += [
                    (reader, longer_path) for reader in readers if reader.name not in visited
                ]
                visited.update(reader.name for reader in readers)
        return None

    def _channels_read(self, step: Step) -> dict[str, str]:
        """Return the channels that a step reads as streams, each with the name of its source."""
        by_name = self.by_name
        sources = [by_name[read] for read in self._names_read(step) if read in by_name]
        return {
            channel: source.name
            for source in sources
            if source.is_stream
            for channel in (
                (source.channel,) if isinstance(source.channel, str) else source.channel
            )
        }

    def _check_durables(self) -> None:
        """Raise ``InvalidArgument`` if two steps read one durable: each event would reach only one
        of them."""
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
        """Return the source whose events a step with ``poison`` buries: the step's only stream.

        Raises ``InvalidArgument`` if the step does not read exactly one stream, or if this source
        has no durable.
        """
        sources = self.by_name
        read = [sources[name] for name in self._names_read(step) if name in sources]
        streams = [source for source in read if source.is_stream]
        if len(streams) != 1 or not streams[0].durable:
            raise InvalidArgument(
                f"step {step.name}: poison needs a durable: the step must read one channel, "
                f"through a source with durable, but it reads "
                f"{', '.join(f'{item.name} ({item.reads})' for item in streams) or 'none'}"
            )
        return streams[0]

    def _names_read(self, step: Step) -> Sequence[str]:
        """Return the names of the sources that a step reads, and descriptions of other inputs."""
        # Only the pipeline knows the folder of a Python function's file, so `Step.reads` cannot
        # parse it.
        if isinstance(step, Query) and step.python:
            return step.parameters(self.folder)
        return step.reads(self.by_name)

    @property
    def by_name(self) -> Mapping[str, Source]:
        """The sources by their names."""
        return {source.name: source for source in self.sources}

    def source(self, name: str) -> Source:
        """Return the source ``name``. Raises ``InvalidArgument`` if it does not exist; the text
        suggests a similar name."""
        return known_source(self.by_name, name)

    def step(self, name: str) -> Step:
        """Return the step ``name``. Raises ``InvalidArgument`` if it does not exist; the text
        suggests a similar name."""
        for step in self.steps:
            if step.name == name:
                return step
        names = tuple(step.name for step in self.steps)
        raise InvalidArgument(f"pipeline {self.name} has no step {name!r}: {nearest(name, names)}")

    def reads(self, step: Step) -> tuple[str, ...]:
        """Return descriptions of the sources that a step reads, for display."""
        sources = self.by_name
        return tuple(
            sources[name].reads if name in sources else name for name in self._names_read(step)
        )

    def located(self, path: str) -> str:
        """Return ``path`` relative to the definition's folder as an absolute path. A URI is
        returned unchanged."""
        return path if _URI.match(path) else str((self.folder / path).absolute())

    @property
    def place(self) -> str:
        """Path or URI of the folder with the pipeline's checkpoints, a folder for each step."""
        return f"{self.located(self.checkpoints).rstrip('/')}/{self.name}"


def known_source(sources: Mapping[str, Source], name: str) -> Source:
    """Return the source ``name``. Raises ``InvalidArgument`` if it does not exist; the text
    suggests a similar name."""
    source = sources.get(name)
    if source is None:
        hint = nearest(name, tuple(sources)) if sources else "no [[source]] is defined"
        raise InvalidArgument(f"source is {name!r}, which is not a source: {hint}")
    return source


def load(path: Path | str) -> Pipeline:
    """Read the pipeline from a TOML file.

    Raises ``InvalidArgument`` if the file cannot be read or has a mistake. The text names the file,
    the source or step, the key, and the allowed values.
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
    """Return the pipeline that a parsed TOML document describes.

    ``file`` is the path for error texts. Paths in the document are relative to ``folder``.
    Raises the errors of :func:`load`.
    """
    top_keys = dict(document)
    sources = tuple(
        convert_table(Source, table, "the source", file, f"source {_name_or_number(table, number)}")
        for number, table in enumerate(_tables(top_keys, "source", file), 1)
    )
    steps = tuple(
        _step(table, file, f"step {_name_or_number(table, number)}")
        for number, table in enumerate(_tables(top_keys, "step", file), 1)
    )
    with _naming(file):
        refuse_unknown(top_keys, _TOP)
        top_keys["spark"] = _flat(top_keys.get("spark", {}))
    top_level_values = {**top_keys, "steps": (), "sources": (), "file": file}
    typed_values = {key: top_level_values[key] for key in _TOP_TYPED if key in top_level_values}
    top_level = convert_table(_TopLevel, typed_values, "the pipeline", file)
    return Pipeline(
        **msgspec.structs.asdict(top_level), steps=steps, sources=sources, file=file, folder=folder
    )


class _TopLevel(Struct, kw_only=True, forbid_unknown_fields=True):
    """The top-level keys of a definition, without ``source`` and ``step``."""

    name: str
    url: str = ""
    master: str = LOCAL_MASTER
    checkpoints: str = CHECKPOINTS
    restarts: int = RESTARTS
    spark: dict[str, str | int | bool] = field(default_factory=dict)


_TOP_TYPED: Final = tuple(item.encode_name for item in msgspec.structs.fields(_TopLevel))
_TOP: Final = (*_TOP_TYPED, "source", "step")


class _naming:  # noqa: N801 - used like a statement
    """Prefixes each ``InvalidArgument`` raised in the ``with`` block with the given places, such as
    the file and the step."""

    def __init__(self, *places: str) -> None:
        self._place = ": ".join(place for place in places if place)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, InvalidArgument) and self._place:
            raise InvalidArgument(f"{self._place}: {error}") from error


def convert_table(kind: type[T], table: Mapping[str, Any], whole: str, *places: str) -> T:
    """Convert a TOML table of a definition to a struct of type ``kind``.

    ``whole`` is the phrase for the table in error texts, such as "the step". Raises
    ``InvalidArgument`` with the ``places``, the key, and the allowed values.
    """
    with _naming(*places):
        refuse_unknown(table, tuple(item.encode_name for item in msgspec.structs.fields(kind)))
        try:
            return msgspec.convert(table, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArgument(
                explain(error, table, kind=kind, whole=whole, words=TOML)
            ) from error


def refuse_unknown(table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ``InvalidArgument`` if a key is not in ``known``; the text has the most similar known
    key."""
    for key in table:
        if key not in known:
            raise InvalidArgument(f"unknown key {key!r}: {nearest(key, tuple(known))}")


def _step(table: Mapping[str, Any], file: str, place: str) -> Step:
    """Convert the table of a ``[[step]]``; the key ``kind`` decides the class."""
    keys = dict(table)
    with _naming(file, place):
        kind = keys.pop("kind", "query")
        if not isinstance(kind, str):
            raise InvalidArgument(f"kind must be a string, not {kind!r}")
        step_type = step_class(kind)
    return convert_table(step_type, keys, "the step", file, place)


def _tables(top_keys: dict[str, Any], key: str, file: str) -> list[dict[str, Any]]:
    """Remove the list of tables ``key`` from the top-level keys and return it."""
    tables = top_keys.pop(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        with _naming(file):
            raise InvalidArgument(f"{key} must be a list of tables, written [[{key}]]")
    return tables


def _name_or_number(table: Mapping[str, Any], number: int) -> str:
    """Return the name of a source or step for error texts; ``number`` if it has no name."""
    name = table.get("name")
    return name if isinstance(name, str) and name else str(number)


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return the settings of Spark by their full dotted names. TOML reads ``spark.sql.x = 1`` as
    nested tables."""
    if not isinstance(settings, dict):
        raise InvalidArgument("spark must be a table of Spark's settings, written [spark]")
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name if name.startswith("spark.") else f"spark.{name}"] = value
    return flat


def _channel_in(target: str) -> str:
    """Return the name of the channel in a description such as ``channel delays``; empty for a
    table."""
    noun, _, name = target.partition(" ")
    return name if noun == "channel" else ""


def _check_name(key: str, name: str) -> None:
    """Raise ``InvalidArgument`` if ``name`` cannot be the name of a folder for checkpoints."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"{key} is {name!r}; it is used as the name of a folder: it may have letters, digits, "
            f"_, - and ., and must not begin with - or ."
        )


def _check_distinct(noun: str, definitions: Sequence[Source] | Sequence[Step]) -> None:
    """Raise ``InvalidArgument`` if two definitions have the same name, apart from case: names of
    sources are SQL names, and names of steps are names of folders."""
    names = set()
    for definition in definitions:
        if definition.name.lower() in names:
            raise InvalidArgument(
                f"two of the {noun}s are called {definition.name}; give each its own name"
            )
        names.add(definition.name.lower())
