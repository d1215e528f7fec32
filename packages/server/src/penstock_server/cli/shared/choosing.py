"""Loads a realm's settings for commands, from a file, the environment and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock_server.settings import Settings
    from penstock_server.settings.loading import InForce


def chosen(file: Path | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a server started on this machine with this file and these flags.

    Raises ``InvalidArgument``; its text names the setting and where it was set.
    """
    from penstock_server.settings.loading import load

    return load(text_of(file), os.environ, flags, file=_name_of(file))


def chosen_for_server(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Return the settings that ``penstock serve`` uses.

    They are those of :func:`chosen`, except that a cluster node that other machines can reach
    requires users unless ``access.mode`` is set. Raises ``InvalidArgument``.
    """
    settings = chosen(file, flags)
    if settings.cluster.engine and settings.access.mode == "off":
        from penstock_core.wire.addresses import is_loopback

        hosts = {settings.listen.host, settings.http.host or settings.listen.host}
        if not all(map(is_loopback, hosts)):
            return chosen(file, with_users(file, flags))
    return settings


def with_users(file: Path | None, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the flags, with ``access.mode`` mandatory unless it is set anywhere."""
    origins = {setting.option: setting.origin for setting in shown(file, flags)}
    return {**flags, "access.mode": "mandatory"} if origins["access.mode"] == "default" else flags


def shown(file: Path | None, flags: Mapping[str, Any] | None = None) -> list[InForce]:
    """Return the settings in force as a list, with the origin of each value."""
    from penstock_server.settings.loading import in_force

    return in_force(text_of(file), os.environ, flags, file=_name_of(file))


def _name_of(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser())


def text_of(file: Path | None) -> str:
    """Return the text of a settings file; empty if ``file`` is None.

    Raises ``InvalidArgument`` if the file cannot be read.
    """
    if file is None:
        return ""
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {file} cannot be read: {error}") from error
