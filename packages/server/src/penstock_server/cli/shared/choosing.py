"""A realm's settings, as commands take them: a file, the environment, and flags."""

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
    """The settings of a server that would be started here with this file and these flags.

    Raises ``InvalidArgument``, which names what is wrong and where it was set.
    """
    from penstock_server.settings.loading import load

    return load(text_of(file), os.environ, flags, file=_name_of(file))


def chosen_for_server(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Likewise, as ``penstock serve`` takes them: a node of a cluster that other machines reach
    asks for users, unless ``access.mode`` is set. Raises ``InvalidArgument``."""
    wanted = chosen(file, flags)
    if wanted.cluster.engine and wanted.access.mode == "off":
        from penstock_core.wire.addresses import is_loopback

        hosts = {wanted.listen.host, wanted.http.host or wanted.listen.host}
        if not all(map(is_loopback, hosts)):
            return chosen(file, with_users(file, flags))
    return wanted


def with_users(file: Path | None, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Flags of a node that asks for users, unless ``access.mode`` is set."""
    origins = {each.option: each.origin for each in shown(file, flags)}
    return {**flags, "access.mode": "mandatory"} if origins["access.mode"] == "default" else flags


def shown(file: Path | None, flags: Mapping[str, Any] | None = None) -> list[InForce]:
    """The settings of such a server as a list, with the origin of each value."""
    from penstock_server.settings.loading import in_force

    return in_force(text_of(file), os.environ, flags, file=_name_of(file))


def _name_of(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser())


def text_of(file: Path | None) -> str:
    """The text of a settings file; empty if none is named. Raises ``InvalidArgument``."""
    if file is None:
        return ""
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {file} cannot be read: {error}") from error
