"""Parts that installed packages register as entry points, such as front ends and commands.

The metadata of the installed distributions is read once, and only for groups whose names begin with
``penstock.``. This takes 1 ms of a start; ``importlib.metadata`` would take 80 ms, mostly for its
import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from penstock_core.vocabulary.errors import InvalidArgument

_EXTRAS: Final = {
    "amqp": "amqp",
    "cluster": "cluster",
    "nats": "cluster",
    "otlp": "otel",
    "pipeline": "spark",
    "postgres": "cluster",
    "postgresql": "cluster",
    "tls": "cluster",
}
"""Extras that install parts of this project's other packages, by the name of the part."""
_PACKAGES: Final = {
    "apply": "tools",
    "export": "tools",
    "load": "tools",
    "top": "tools",
    "topic": "mqtt",
}
"""Packages of other parts, by the name of the part; a part that is not listed has the name of its
package."""
_PREFIX: Final = "penstock."
_METADATA: Final = ".dist-info"


class EntryPoint(NamedTuple):
    """An object that an installed distribution registers by name, as Python's entry points do."""

    group: str
    name: str
    place: str
    """Location of the object, as ``module:object``."""
    distribution: str
    """Name and version of the distribution that registers it, such as ``penstock_realm-0.2.0``."""

    def load(self) -> Any:
        """Import the object. Raises ``InvalidArgument`` if that fails."""
        module, _, name = self.place.partition(":")
        try:
            return getattr(import_module(module), name)
        except Exception as error:
            raise InvalidArgument(
                f"{self.name!r} of {self.group} cannot be loaded from {self.place} "
                f"({type(error).__name__}: {error}); {self.distribution} registers it: reinstall "
                "or uninstall that distribution"
            ) from error


def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the parts of a group by name, sorted by name.

    Raises ``InvalidArgument`` if two distributions register one name.
    """
    return _registered(group, tuple(sys.path))


def loaded(group: str, name: str, *, use: str) -> Any:
    """Return the object of a part; ``use`` states in error texts what it is needed for.

    Raises ``InvalidArgument`` if no installed distribution registers it, or it cannot be imported.
    """
    part = registered(group).get(name)
    if part is None:
        raise InvalidArgument(f"{use}, but no installed package has it: {install_line(name)}")
    return part.load()


def install_line(name: str) -> str:
    """Return the command that installs a part of this project, such as a front end."""
    if name in _EXTRAS:
        return f"pip install 'penstock-realm[{_EXTRAS[name]}]'"
    return f"pip install penstock-{_PACKAGES.get(name, name)}"


@cache
def _registered(group: str, path: Sequence[str]) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group that the folders of ``path`` contain, by name, sorted.
    Raises ``InvalidArgument`` if two distributions register one name."""
    parts: dict[str, EntryPoint] = {}
    for part in _parts(path):
        if part.group != group:
            continue
        if part.name in parts:
            raise InvalidArgument(
                f"{part.name!r} of {group} is registered by {parts[part.name].distribution} and "
                f"by {part.distribution}; uninstall one of these distributions"
            )
        parts[part.name] = part
    return dict(sorted(parts.items()))


@cache
def _parts(path: Sequence[str]) -> Sequence[EntryPoint]:
    return tuple(part for name, text in _entry_points(path) for part in _parts_in(text, name))


def _entry_points(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each installed distribution with ``penstock.`` groups, and the text of its entry
    points. If two distributions have one name, Python imports the first one on the path."""
    seen: set[str] = set()
    for folder in dict.fromkeys(path):
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a ZIP file, or a folder that does not exist
            continue
        for name in names:
            distribution = name.removesuffix(_METADATA)
            project = distribution.partition("-")[0].lower()
            if distribution == name or project in seen:
                continue
            seen.add(project)
            try:
                with open(f"{folder or '.'}/{name}/entry_points.txt", encoding="utf-8") as file:
                    text = file.read()
            except OSError:  # most distributions have none
                continue
            if f"[{_PREFIX}" in text:
                yield distribution, text


def _parts_in(text: str, distribution: str) -> Iterator[EntryPoint]:
    """Yield the parts that the entry points of a distribution register."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group.startswith(_PREFIX) and "=" in line and not line.startswith("#"):
            name, _, place = line.partition("=")
            yield EntryPoint(
                group, name.strip(), place.strip().replace(" ", ""), distribution=distribution
            )
