"""The step ``query``: writes the result of an SQL query or a Python function over the sources."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest
from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.step import (
    ChannelTarget,
    Context,
    Flow,
    StreamStep,
    TableTarget,
    channel_target,
    deprecated_formats_of,
    describe_targets,
    table_target,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSION: Final = "spark"
"""Name of the parameter of a Python function that receives the Spark session."""

_PYTHON: Final = re.compile(r"([\w./-]+):([A-Za-z_]\w*)")
# Skips texts and comments; matches quoted and plain names.
_WORDS: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/|`((?:[^`]|``)+)`|([A-Za-z_]\w*)""",
    re.DOTALL,
)
_END: Final = re.compile(r"\s*SQLSTATE: |\n== |;\s*line \d|\(line \d|;\n'")
_PLACE: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")


class Query(StreamStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Writes the rows of ``sql`` or ``python`` to a channel, a table, or both."""

    kind: ClassVar[str] = "query"

    sql: str = ""
    """A SELECT that reads sources by their names."""

    python: Any = ""
    """``"module:function"`` or ``"file.py:function"``, relative to the folder of the definition's
    file; a pipeline made in Python has the function itself. The parameters of the function have the
    names of sources; it returns the DataFrame to write.
    """

    channel: ChannelTarget | str | None = None
    table: TableTarget | str | None = None
    output_mode: Literal["append", "update", "complete"] = "append"

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.sql) == bool(self.python):
            has = "both are given" if self.sql else "none is given"
            raise InvalidArgument(f"sql or python: {has}; give exactly one")
        if isinstance(self.python, str) and self.python and not _PYTHON.fullmatch(self.python):
            raise InvalidArgument(
                f'python is {self.python!r}; it must be "module:function" or "file.py:function"'
            )
        if not isinstance(self.python, str) and not callable(self.python):
            raise InvalidArgument(f"python is {self.python!r}; it must be a function or its name")
        if self.channel is None and self.table is None:
            raise InvalidArgument(
                "channel, table: none is given; give at least one target of the rows"
            )
        if self.output_mode != "append" and self.table is not None:
            raise InvalidArgument(
                f"output_mode is {self.output_mode!r}; for a table it must be append"
            )

    def reads(self, sources: Mapping[str, Source]) -> tuple[str, ...]:
        if self.sql:
            return tuple(names_in_sql(self.sql, sources))
        return tuple(self.parameters(Path())) if callable(self.python) else ()

    def writes(self) -> tuple[str, ...]:
        return describe_targets(self.channel, self.table)

    def deprecations(self) -> tuple[str, ...]:
        return deprecated_formats_of(self.table)

    def check(self, sources: Mapping[str, Source], folder: Path) -> None:
        key = "sql" if self.sql else "python"
        read = (
            list(names_in_sql(self.sql, sources)) if self.sql else self._parameters(sources, folder)
        )
        if not read:
            defined = f"defined are {', '.join(sources)}" if sources else "none is defined"
            raise InvalidArgument(f"{key} reads no [[source]]; {defined}")
        if not any(sources[name].is_stream for name in read):
            raise InvalidArgument(
                f"{key} reads no stream, only {', '.join(read)}; a step must read the events of a "
                f"channel or queue"
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

        for name in names_in_sql(self.sql, context.sources):
            context.table(name).createOrReplaceTempView(name)
        try:
            return context.spark.sql(self.sql)
        except (ParseException, AnalysisException) as error:
            raise InvalidArgument(f"sql: {describe_sql_error(str(error), self.sql)}") from error

    def _by_function(self, context: Context) -> DataFrame:
        from pyspark.sql import DataFrame

        function = self.function(context.folder)
        arguments = {
            name: context.spark if name == SESSION else context.table(name)
            for name in parameters_of(function)
        }
        table = function(**arguments)
        if not isinstance(table, DataFrame):
            raise InvalidArgument(
                f"python: {self._called} returned {type(table).__name__}; it must return a "
                f"DataFrame"
            )
        return table

    def parameters(self, folder: Path) -> list[str]:
        """Return the names of the sources that the Python function reads. A function given by name
        is parsed and not loaded, because its module may need a Spark session."""
        if callable(self.python):
            names = parameters_of(self.python)
        else:
            names = parameters_in_source(self.python, folder)
        return [name for name in names if name != SESSION]

    def function(self, folder: Path) -> Callable[..., Any]:
        """Load the step's Python function, and make Spark send its module to Spark's processes.

        Raises ``InvalidArgument`` if the module cannot be loaded.
        """
        function = self._loaded(folder)
        _pickle_by_value(function, folder)
        return function

    @property
    def _called(self) -> str:
        """The name of the Python function, for error texts."""
        return self.python if isinstance(self.python, str) else self.python.__name__

    def _parameters(self, sources: Mapping[str, Source], folder: Path) -> list[str]:
        names = self.parameters(folder)
        for name in names:
            if name not in sources:
                hint = nearest(name, tuple(sources)) if sources else "none is defined"
                raise InvalidArgument(
                    f"python: {self._called} has a parameter {name}, which is not a [[source]]: "
                    f"{hint}"
                )
        return names

    def _loaded(self, folder: Path) -> Callable[..., Any]:
        if not isinstance(self.python, str):
            return cast("Callable[..., Any]", self.python)
        place, _, name = self.python.partition(":")
        try:
            return cast("Callable[..., Any]", getattr(_module(place, folder), name))
        except Exception as error:
            raise InvalidArgument(
                f"python: {place} cannot be loaded: {type(error).__name__}: {error}"
            ) from error


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def names_in_sql(sql: str, names: Iterable[str]) -> Iterable[str]:
    """Return those of ``names`` that occur in the SQL outside of string literals and comments. Case
    does not matter."""
    by_lower_case = {name.lower(): name for name in names}
    words = {(quoted or plain).lower(): None for quoted, plain in _WORDS.findall(sql)}
    return [by_lower_case[word] for word in words if word in by_lower_case]


def describe_sql_error(text: str, sql: str) -> str:
    """Return Spark's error about a query in one line, with the line of the query."""
    message = " ".join(_END.split(text.partition("] ")[2] or text, maxsplit=1)[0].split())
    place = _PLACE.search(text)
    if place is None:
        return message
    line_number = int(place[1])
    lines = sql.splitlines()
    line = f": {lines[line_number - 1].strip()}" if 0 < line_number <= len(lines) else ""
    return f"{message.rstrip('. ')}; line {line_number}{line}"


def parameters_in_source(reference: str, folder: Path) -> list[str]:
    """Return the parameters of the function ``reference``, read from its source code.

    Raises ``InvalidArgument`` if the file or the function does not exist, or the file is not
    Python.
    """
    place, _, name = reference.partition(":")
    path = _file_of(place, folder)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise InvalidArgument(f"python: {path} is not Python: {error}") from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in defined:
        hint = nearest(name, tuple(defined)) if defined else "it defines none"
        raise InvalidArgument(f"python: {place} has no function {name}: {hint}")
    arguments = defined[name].args
    return [
        argument.arg
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    ]


def _file_of(place: str, folder: Path) -> Path:
    """Return the file of a module in the definition's folder or in an installed package. Raises
    ``InvalidArgument`` if it does not exist."""
    local = folder / (place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    if local.is_file() or place.endswith(".py"):
        if not local.is_file():
            raise InvalidArgument(f"python: the file {local} does not exist")
        return local
    package = local.with_suffix("") / "__init__.py"
    if package.is_file():
        return package
    try:
        spec = importlib.util.find_spec(place)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise InvalidArgument(
            f"python: the module {place} does not exist, neither as {local} nor as an "
            f"installed package"
        )
    return Path(spec.origin)


def _module(place: str, folder: Path) -> ModuleType:
    """Load a module by its name, or from a file that ends with ``.py``."""
    if not place.endswith(".py"):
        if (import_path := str(folder.resolve())) not in sys.path:
            sys.path.insert(0, import_path)
        return importlib.import_module(place)
    path = _file_of(place, folder).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a path that ends with .py has a spec"
    assert spec.loader is not None, "the spec of a file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pickle_by_value(function: Callable[..., Any], folder: Path) -> None:
    """Make Spark send the function's module to its processes as code, if the module is in the
    definition's folder: the processes may not have this folder."""
    from pyspark import cloudpickle

    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if module is not None and file and Path(file).resolve().is_relative_to(folder.resolve()):
        cast("Any", cloudpickle).register_pickle_by_value(module)
