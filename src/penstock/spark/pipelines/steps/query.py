"""The step that is a query: SQL over the sources, or a Python function of them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from penstock.core.errors import InvalidArgument
from penstock.spark.options import nearest
from penstock.spark.pipelines.sources import Source
from penstock.spark.pipelines.step import (
    ChannelTarget,
    Context,
    Flow,
    StreamStep,
    TableTarget,
    channel_target,
    named_targets,
    table_target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSION: Final = "spark"
"""The parameter of a Python function that gets the session instead of a source."""

_PYTHON: Final = re.compile(r"([\w./-]+):([A-Za-z_]\w*)")
# Texts and comments are passed over, names are found: quoted ones and plain ones.
_WORDS: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/|`((?:[^`]|``)+)`|([A-Za-z_]\w*)""",
    re.DOTALL,
)
_PLACE: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")


class Query(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sql`` or ``python`` over the sources, into a channel, a table, or both by one query."""

    kind: ClassVar[str] = "query"

    sql: str = ""
    """A SELECT over the sources, by their names."""

    python: Any = ""
    """``"module:function"`` or ``"file.py:function"``, beside the definition's file; in Python
    the function itself. Its parameters are named as the sources; it returns the table to write.
    """

    channel: ChannelTarget | str | None = None
    table: TableTarget | str | None = None
    output_mode: Literal["append", "update", "complete"] = "append"

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.sql) == bool(self.python):
            has = "both are given" if self.sql else "none is given"
            raise InvalidArgument(f"sql or python: {has}; exactly one is needed")
        if isinstance(self.python, str) and self.python and not _PYTHON.fullmatch(self.python):
            raise InvalidArgument(
                f'python is {self.python!r}; it is "module:function" or "file.py:function"'
            )
        if not isinstance(self.python, str) and not callable(self.python):
            raise InvalidArgument(f"python is {self.python!r}; it is a function or its name")
        if self.channel is None and self.table is None:
            raise InvalidArgument("channel, table: none is given; say where the rows go")
        if self.output_mode != "append" and self.table is not None:
            raise InvalidArgument(
                f"output_mode is {self.output_mode!r}; a table only grows: it is append there"
            )

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        if self.sql:
            return tuple(used_in(self.sql, sources))
        if isinstance(self.python, str):
            return ()  # its code is not run to find out
        return tuple(name for name in parameters_of(self.python) if name != SESSION)

    def writes(self) -> tuple[str, ...]:
        return named_targets(self.channel, self.table)

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        key = "sql" if self.sql else "python"
        read = list(used_in(self.sql, sources)) if self.sql else self._parameters(sources, folder)
        if not read:
            there_are = f"there are {', '.join(sources)}" if sources else "none is defined"
            raise InvalidArgument(f"{key} reads no [[source]]; {there_are}")
        if not any(sources[name].is_stream for name in read):
            raise InvalidArgument(
                f"{key} reads no stream, only {', '.join(read)}; a step runs as a query over the "
                "events of a channel or queue"
            )

    def plan(self, context: Context) -> Flow:
        return Flow(
            frame=self._by_sql(context) if self.sql else self._by_function(context),
            channel=channel_target(self.channel),
            table=table_target(self.table),
            output_mode=self.output_mode,
            trigger=self.trigger,
            poison=self.poison,
        )

    def _by_sql(self, context: Context) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        for name in used_in(self.sql, context.sources):
            context.table(name).createOrReplaceTempView(name)
        try:
            return context.spark.sql(self.sql)
        except (ParseException, AnalysisException) as error:
            raise InvalidArgument(f"sql: {said(str(error), self.sql)}") from error

    def _by_function(self, context: Context) -> DataFrame:
        from pyspark.sql import DataFrame

        function = self._function(context.folder)
        given = {
            name: context.spark if name == SESSION else context.table(name)
            for name in parameters_of(function)
        }
        found = function(**given)
        if not isinstance(found, DataFrame):
            raise InvalidArgument(
                f"python: {self._called} returned {type(found).__name__}; a DataFrame is needed"
            )
        return found

    @property
    def _called(self) -> str:
        return self.python if isinstance(self.python, str) else self.python.__name__

    def _parameters(self, sources: Mapping[str, Source], folder: Path) -> list[str]:
        names = [name for name in parameters_of(self._function(folder)) if name != SESSION]
        for name in names:
            if name not in sources:
                hint = nearest(name, tuple(sources)) if sources else "none is defined"
                raise InvalidArgument(
                    f"python: {self._called} has a parameter {name}, which is no [[source]]: {hint}"
                )
        return names

    def _function(self, folder: Path) -> Callable[..., Any]:
        if not isinstance(self.python, str):
            return cast("Callable[..., Any]", self.python)
        found = _PYTHON.fullmatch(self.python)
        assert found is not None, "it was looked at when the step was made"
        module = _module(found[1], folder)
        function = getattr(module, found[2], None)
        if not callable(function):
            names = tuple(name for name, value in vars(module).items() if callable(value))
            hint = nearest(found[2], names) if names else "it defines none"
            raise InvalidArgument(f"python: {found[1]} has no function {found[2]}: {hint}")
        return cast("Callable[..., Any]", function)


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names a function is called with."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def used_in(sql: str, names: Iterable[str]) -> Iterable[str]:
    """Those of the names that stand in the SQL, outside of texts and comments."""
    known = {name.lower(): name for name in names}
    found = {(quoted or plain).lower(): None for quoted, plain in _WORDS.findall(sql)}
    return [known[word] for word in found if word in known]


def said(text: str, sql: str) -> str:
    """What Spark says of a query, in one line, with the line of the query it means."""
    what = " ".join(re.split(r"\n== |\n?;\s*line \d|\(line \d|;\n'", text, maxsplit=1)[0].split())
    place = _PLACE.search(text)
    if place is None:
        return what
    number = int(place[1])
    lines = sql.splitlines()
    shown = f": {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
    return f"{what.rstrip('. ')}; line {number}{shown}"


def _module(place: str, folder: Path) -> ModuleType:
    """A module by name, or a file; both are looked for beside the definition first."""
    if place.endswith(".py"):
        path = (folder / place).resolve()
        if not path.is_file():
            raise InvalidArgument(f"python: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None, "a path that ends with .py has one"
        module = importlib.util.module_from_spec(spec)
        _loading(place, lambda: cast("Any", spec.loader).exec_module(module))
    else:
        beside = str(folder.resolve())
        if beside not in sys.path:
            sys.path.insert(0, beside)
        module = _loading(place, lambda: importlib.import_module(place))
    return module


def _loading(place: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"python: there is no module {error.name}; it is looked for beside the definition "
            "and among what is installed"
        ) from error
    except Exception as error:  # noqa: BLE001 - code of the user's, which may raise anything
        raise InvalidArgument(
            f"python: {place} does not load: {type(error).__name__}: {error}"
        ) from error
