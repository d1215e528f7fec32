"""Reads the settings at the start of a server, and says where each value comes from.

Order: default, settings file (TOML), environment (``PENSTOCK_LISTEN_PORT``), command line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.argument_errors import TOML, explain
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.parts import EntryPoint, registered
from penstock_server.settings import Section, Settings, without_secret

GROUP: Final = "penstock.settings"
"""Group of sections that installed packages add to the settings, by their names."""
PREFIX: Final = "PENSTOCK_"
OTHER_VARIABLES: Final = (
    "PENSTOCK_URL",
    "PENSTOCK_USER",
    "PENSTOCK_PASSWORD",
    "PENSTOCK_TOKEN",
    "PENSTOCK_NEW_PASSWORD",
    "PENSTOCK_COMPLETE",
)
"""Variables with our prefix that clients and commands read, which are no settings."""
_ORCHESTRATED: Final = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP)(_\w+)?=.*|=(tcp|udp)://.*))"
).fullmatch
"""Kubernetes gives every container such variables of a service that is called ``penstock``, or
``penstock-…``: a realm must start beside them."""

PATH_LISTS: Final = frozenset(("http.pipelines",))
PATHS: Final = frozenset(
    (
        "listen.tls_certificate",
        "listen.tls_key",
        "listen.tls_client_ca",
        "listen.tls_client_revoked",
        "access.token_keys",
        *PATH_LISTS,
        "cluster.tls_authority",
        "cluster.tls_certificate",
        "cluster.tls_key",
    )
)
"""Options that name files and folders; relative ones in a settings file are of its folder."""
_UNITS: Final = frozenset(("bytes", "ms", "s", "rounds"))

Origin = Literal["default", "file", "environment", "flag"]


class InForce(Struct, frozen=True):
    """One option as a server takes it."""

    option: str
    value: Any
    unit: str
    """``bytes``, ``s``, ``ms`` and so on; empty: a number of things, a name or a choice."""
    origin: Origin = msgspec.field(name="from")
    variable: str
    default: Any
    help: str


def load(
    document: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    file: str = "",
) -> Settings:
    """Settings from TOML text, then environment variables, then ``{"listen.port": 9001}``.

    ``file`` is where the text comes from: messages name it, and relative paths in the text are
    of its folder. Raises ``InvalidArgument`` naming the option, or the variable, that is none or
    has a bad value.
    """
    return _Reading(document, environment or {}, overrides or {}, file=file).settings()


def in_force(
    document: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    file: str = "",
) -> list[InForce]:
    """Every option as a server takes it, and where its value comes from; what is secret in a value
    is hidden.

    Raises ``InvalidArgument`` as :func:`load` does.
    """
    reading = _Reading(document, environment or {}, overrides or {}, file=file)
    settings = reading.settings()
    return [
        InForce(
            option=path,
            value=without_secret(_value_at(settings, path)),
            unit=unit_of(path),
            origin=reading.origins.get(path, "default"),
            variable=variable_of(path),
            default=default,
            help=sentence,
        )
        for path, default, sentence in described()
    ]


class _Reading:
    """One set of settings on its way from texts to values."""

    def __init__(
        self,
        document: str,
        environment: Mapping[str, str],
        overrides: Mapping[str, Any],
        file: str,
    ) -> None:
        self._file = file
        self._tree: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        """Where each option was set, for those that somebody has set."""
        try:
            written = tomllib.loads(document)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidArgument(f"{file or 'the settings'} is not TOML: {error}") from error
        self._from_file(written, "")
        for path, text in _from_environment(environment):
            self._put(path, text, "environment")
        for path, value in overrides.items():
            if value is not None:
                self._check_known(path, "setting")
                self._put(path, value, "flag")

    def settings(self) -> Settings:
        try:
            return msgspec.convert(self._tree, settings_type(), strict=False)
        except msgspec.ValidationError as error:
            raise InvalidArgument(self._refusal(error)) from error
        except RecursionError as error:
            raise InvalidArgument(f"{self._where}: a value is nested too deep") from error

    def _from_file(self, section: Mapping[str, Any], prefix: str) -> None:
        for key, value in section.items():
            path = f"{prefix}{key}"
            if path in _sections():
                if not isinstance(value, dict):
                    raise InvalidArgument(
                        f"{self._where}: {path} must be a table, [{path}], not {value!r}"
                    )
                self._from_file(value, f"{path}.")
                continue
            self._check_known(path, f"setting ({self._where})")
            if path in PATHS and isinstance(value, str) and self._file:
                value = _below(Path(self._file).parent, path, value)
            self._put(path, value, "file")

    @property
    def _where(self) -> str:
        return self._file or "settings"

    def _check_known(self, path: str, what: str) -> None:
        if path not in _paths():
            near = _of_a_section(path) or _nearest(path, [*_paths(), *_sections()])
            raise InvalidArgument(f"{path} is not a {what}{near}")

    def _put(self, path: str, value: Any, origin: Origin) -> None:
        *sections, key = path.split(".")
        tree = self._tree
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[key] = value
        self.origins[path] = origin

    def _refusal(self, fault: msgspec.ValidationError) -> str:
        """What a bad value is told with: whoever gave it knows it by the name given here."""
        said = explain(fault, self._tree, kind=settings_type(), whole="settings", words=TOML)
        path = said.partition(" ")[0]
        match self.origins.get(path):
            case "environment":
                return f"{variable_of(path)} ({path}){said.removeprefix(path)}"
            case "file":
                return f"{self._where}: {said}"
            case _:
                return f"settings: {said}"


def variable_of(path: str) -> str:
    """The environment variable of an option: ``PENSTOCK_LISTEN_PORT`` for ``listen.port``."""
    return f"{PREFIX}{path.upper().replace('.', '_')}"


def unit_of(path: str) -> str:
    """What the number of an option counts, as its name tells; empty: things, or it is none."""
    words = path.rpartition(".")[2].split("_")
    if "per" in words and "s" in words:
        return "1/s"
    return next((word for word in words if word in _UNITS), "")


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Path and text of every option the environment has. Raises ``InvalidArgument`` for a variable
    that would be one but for its name; its value is not repeated, for it may be a password."""
    known = {variable_of(path): path for path in _paths()}
    found = []
    for name in sorted(environment):
        if name in known:
            found.append((known[name], environment[name]))
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            if _ORCHESTRATED(f"{name}={environment[name]}"):
                continue
            near = _nearest(name, [*known, *OTHER_VARIABLES])
            raise InvalidArgument(f"the environment variable {name} is not a setting{near}")
    return found


def _of_a_section(path: str) -> str:
    """A hint at the option whose section was left out or taken for another: ``listen.mqtt_port``
    for ``mqtt`` and for ``mqtt.port``."""
    option = path.replace(".", "_")
    near = next(
        (each for each in _paths() if f"{each.rpartition('.')[2]}_".startswith(f"{option}_")), ""
    )
    return near and f"; did you mean {near}?"


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    by_rest = {each.removeprefix(PREFIX): each for each in known}  # without the common prefix
    near = difflib.get_close_matches(name.removeprefix(PREFIX), by_rest, n=1)
    if not near:
        return "; `penstock settings --list` has them all"
    return f"; did you mean {by_rest[near[0]]}?"


def _below(folder: Path, path: str, value: str) -> str:
    """A relative path in a settings file is one of the file's folder."""
    if "://" in value or not value:
        return value
    parts = value.split(":") if path in PATH_LISTS else [value]
    return ":".join(str(folder / Path(part).expanduser()) if part else "" for part in parts)


def _value_at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else getattr(tree, part, None)
    return tree


def settings_type() -> type[Settings]:
    """The type of the settings, with the sections of installed packages. Raises ``InvalidArgument``
    if one cannot be loaded, or has a name that the settings have already."""
    parts = registered(GROUP)
    return _extended(tuple(parts.values())) if parts else Settings


@cache
def _extended(parts: Sequence[EntryPoint]) -> type[Settings]:
    sections: list[tuple[str, type, Section]] = []
    for part in parts:
        if part.name in Settings.__struct_fields__:
            raise InvalidArgument(
                f"{part.distribution} registers the settings {part.name!r}, which every realm has; "
                "uninstall it"
            )
        kind: type[Section] = part.load()
        sections.append((part.name, kind, kind()))
    extended = msgspec.defstruct(
        "Settings",
        sections,
        bases=(Settings,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(extended, Settings), "it is its base"
    return extended


def described() -> Sequence[tuple[str, Any, str]]:
    """Path, default and sentence of every option, for the reference page."""
    return _described(settings_type())


@cache
def _described(kind: type[Settings]) -> Sequence[tuple[str, Any, str]]:
    return tuple(
        (path, getattr(section, name), _sentences(type(section))[name])
        for path, section, name in _options(kind(), "")
    )


def _sections() -> frozenset[str]:
    return frozenset(path.rpartition(".")[0] for path in _paths()) - {""}


def _paths() -> Sequence[str]:
    """Paths of all options, in their order. What else there is to know of them takes five times as
    long to find out, and a start has no use for it."""
    return _paths_of(settings_type())


@cache
def _paths_of(kind: type[Settings]) -> Sequence[str]:
    return tuple(path for path, _, _ in _options(kind(), ""))


def _options(section: Struct, prefix: str) -> Iterator[tuple[str, Struct, str]]:
    """Every option below ``section``: its path, the section that it is in, its name there."""
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Struct):
            yield from _options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section, name


@cache
def _sentences(section: type[Struct]) -> Mapping[str, str]:
    """What the options of a section are described with."""
    found: dict[str, str] = {}
    for field in msgspec.inspect.type_info(section).fields:  # type: ignore[attr-defined]  # a StructType
        extra = getattr(field.type, "extra_json_schema", None) or {}
        found[field.name] = extra.get("description", "")
    return found
