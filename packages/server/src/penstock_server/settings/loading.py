"""Loads the settings of a server, and records the origin of each value.

Later sources override earlier ones: default, settings file (TOML), environment
(``PENSTOCK_LISTEN_PORT``), command line.
"""

from __future__ import annotations

import re
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
"""Entry point group of sections that installed packages add to the settings, by name."""
PREFIX: Final = "PENSTOCK_"
OTHER_VARIABLES: Final = (
    "PENSTOCK_URL",
    "PENSTOCK_USER",
    "PENSTOCK_PASSWORD",
    "PENSTOCK_TOKEN",
    "PENSTOCK_NEW_PASSWORD",
    "PENSTOCK_SOURCE_PASSWORD",
    "PENSTOCK_COMPLETE",
)
"""Variables with the prefix that clients and commands read; they are not settings."""
_ORCHESTRATED: Final = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP)(_\w+)?=.*|=(tcp|udp)://.*))"
).fullmatch
"""Variables that Kubernetes sets in every container if a service is named ``penstock`` or
``penstock-…``. A realm must start despite them."""

PATH_LISTS: Final = frozenset(("http.pipelines",))
PATHS: Final = frozenset(
    (
        "listen.tls_certificate",
        "listen.tls_key",
        "listen.tls_client_ca",
        "listen.tls_client_revoked",
        "access.token_keys",
        "access.ldap.ca",
        "access.ldap.bind_password_file",
        *PATH_LISTS,
        "cluster.tls_authority",
        "cluster.tls_certificate",
        "cluster.tls_key",
    )
)
"""Options that name files and folders; in a settings file, relative paths start at its folder."""
_UNITS: Final = frozenset(("bytes", "ms", "s", "rounds"))

Origin = Literal["default", "file", "environment", "flag"]


class InForce(Struct, frozen=True):
    """An option with its value in force."""

    option: str
    value: Any
    unit: str
    """``bytes``, ``s``, ``ms`` and so on; empty for a count, a name or a choice."""
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
    """Return the settings from TOML text, environment variables and ``overrides``, such as
    ``{"listen.port": 9001}``; later sources override earlier ones.

    ``file`` is the path of the text: messages name it, and relative paths in the text start at its
    folder. Raises ``InvalidArgument``, whose text names the unknown or invalid option or variable.
    """
    return _Reading(document, environment or {}, overrides or {}, file=file).settings()


def in_force(
    document: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    file: str = "",
) -> list[InForce]:
    """Return every option with its value in force and the origin of the value. Secrets in values
    are hidden.

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


def _tables(document: str, file: str) -> dict[str, Any]:
    """Return the tables of TOML text. Raises ``InvalidArgument``."""
    import tomllib  # here, because most servers have no settings file

    try:
        return tomllib.loads(document)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{file or 'the settings'} is not TOML: {error}") from error


class _Reading:
    """Collects the settings of all sources in one tree, and converts it to ``Settings``."""

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
        """Origin of each option that is not at its default."""
        if document:
            self._from_file(_tables(document, file), "")
        for path, text in _from_environment(environment):
            self._put(path, text, "environment")
        for path, value in overrides.items():
            if value is not None:  # None stands for a flag that is not on the command line
                self._check_known(path, "setting")
                self._put(path, value, "flag")

    def settings(self) -> Settings:
        try:
            # Not strict, because values from the environment are texts.
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
            near = _in_another_section(path) or _nearest(path, [*_paths(), *_sections()])
            raise InvalidArgument(f"{path} is not a {what}{near}")

    def _put(self, path: str, value: Any, origin: Origin) -> None:
        """Set the setting ``path``, whose sections are separated by dots, and record its origin."""
        *sections, key = path.split(".")
        tree = self._tree
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[key] = value
        self.origins[path] = origin

    def _refusal(self, fault: msgspec.ValidationError) -> str:
        """Return the error text of an invalid value, which names the variable or the file in which
        the user set the value."""
        text = explain(fault, self._tree, kind=settings_type(), whole="settings", words=TOML)
        path = text.partition(" ")[0]
        match self.origins.get(path):
            case "environment":
                return f"{variable_of(path)} ({path}){text.removeprefix(path)}"
            case "file":
                return f"{self._where}: {text}"
            case _:
                return f"settings: {text}"


def variable_of(path: str) -> str:
    """Return the environment variable of an option: ``PENSTOCK_LISTEN_PORT`` for
    ``listen.port``."""
    return f"{PREFIX}{path.upper().replace('.', '_')}"


def unit_of(path: str) -> str:
    """Return the unit of an option's value, from its name; empty for a count or another value."""
    words = path.rpartition(".")[2].split("_")
    if "per" in words and "s" in words:
        return "1/s"
    return next((word for word in words if word in _UNITS), "")


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the path and text of every option that is set in the environment.

    Raises ``InvalidArgument`` for an unknown variable with the prefix. The error does not repeat
    its value, which may be a password.
    """
    paths = {variable_of(path): path for path in _paths()}
    options = []
    for name in sorted(environment):
        if name in paths:
            options.append((paths[name], environment[name]))
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            if _ORCHESTRATED(f"{name}={environment[name]}"):
                continue
            near = _nearest(name, [*paths, *OTHER_VARIABLES])
            raise InvalidArgument(f"the environment variable {name} is not a setting{near}")
    return options


def _in_another_section(path: str) -> str:
    """Return a hint if the section of an option is missing or wrong: ``listen.mqtt_port`` for
    ``mqtt`` and for ``mqtt.port``."""
    option = path.replace(".", "_")
    # With the underscores, only whole words match: `port` does not match `ports`.
    near = next(
        (name for name in _paths() if f"{name.rpartition('.')[2]}_".startswith(f"{option}_")), ""
    )
    return near and f"; did you mean {near}?"


def _nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error text: the candidate most like an unknown setting, or the command
    that lists all settings."""
    import difflib

    # Without the common prefix, which would make all names similar.
    names_by_suffix = {candidate.removeprefix(PREFIX): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), names_by_suffix, n=1)
    if not near:
        return "; `penstock settings --list` lists all settings"
    return f"; did you mean {names_by_suffix[near[0]]}?"


def _below(folder: Path, path: str, value: str) -> str:
    """Return the value of a path option with relative paths resolved against ``folder``."""
    if "://" in value or not value:
        return value
    parts = value.split(":") if path in PATH_LISTS else [value]
    return ":".join(str(folder / Path(part).expanduser()) if part else "" for part in parts)


def _value_at(tree: Any, path: str) -> Any:
    """Return the value at a dotted path in nested mappings and structs; None if it has no such
    part."""
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else getattr(tree, part, None)
    return tree


def settings_type() -> type[Settings]:
    """Return the type of the settings, with the sections of installed packages.

    Raises ``InvalidArgument`` if a section cannot be loaded or its name is in use.
    """
    parts = registered(GROUP)
    return _extended(tuple(parts.values())) if parts else Settings


@cache
def _extended(parts: Sequence[EntryPoint]) -> type[Settings]:
    """Return the class of the settings with the sections that ``parts`` register. Raises
    ``InvalidArgument`` if one has the name of a built-in section."""
    sections: list[tuple[str, type, Section]] = []
    for part in parts:
        if part.name in Settings.__struct_fields__:
            raise InvalidArgument(
                f"{part.distribution} registers the settings section {part.name!r}, which is a "
                "built-in section; uninstall that package"
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
    assert issubclass(extended, Settings), "Settings is its base class"
    return extended


def described() -> Sequence[tuple[str, Any, str]]:
    """Return the path, default and description of every option, for the reference page."""
    return _described(settings_type())


@cache
def _described(kind: type[Settings]) -> Sequence[tuple[str, Any, str]]:
    """Return the path, the default and the description of each option."""
    return tuple(
        (path, getattr(section, name), _sentences(type(section))[name])
        for path, section, name in _options(kind(), "")
    )


def _sections() -> frozenset[str]:
    return frozenset(path.rpartition(".")[0] for path in _paths()) - {""}


def _paths() -> Sequence[str]:
    """Return the paths of all options in order. Collecting defaults and descriptions as well would
    take five times as long, and the start of a server does not need them."""
    return _paths_of(settings_type())


@cache
def _paths_of(kind: type[Settings]) -> Sequence[str]:
    return tuple(path for path, _, _ in _options(kind(), ""))


def _options(section: Struct, prefix: str) -> Iterator[tuple[str, Struct, str]]:
    """Yield every option in ``section``: its path, its section, and its name there."""
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Struct):
            yield from _options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section, name


@cache
def _sentences(section: type[Struct]) -> Mapping[str, str]:
    """Return the descriptions of a section's options by name."""
    descriptions: dict[str, str] = {}
    for field in msgspec.inspect.type_info(section).fields:  # type: ignore[attr-defined]  # a StructType
        extra = getattr(field.type, "extra_json_schema", None) or {}
        descriptions[field.name] = extra.get("description", "")
    return descriptions
