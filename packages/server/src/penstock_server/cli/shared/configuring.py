"""Command options that set a realm's settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from penstock_server.cli.shared.options import Command, option, with_options
from penstock_server.cli.shared.server_flags import FLAGS, Flag

SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Settings file (TOML).", metavar="FILE")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="URL of the cluster's storage engine, with all its servers. [default: no cluster]",
        metavar="URL",
    ),
]


def server_flags(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the named server flags to a command, in this order."""
    options = {flag.name: _option(flag) for flag in FLAGS}
    return lambda command: with_options(command, [options[name] for name in names])


def _option(flag: Flag) -> inspect.Parameter:
    """Return the command's parameter for a flag of the server."""
    kind: Any = Literal[flag.kind] if isinstance(flag.kind, tuple) else flag.kind
    words = (f"{flag.word}/--no-{flag.name}",) if flag.kind is bool else ()
    declared = typer.Option(*words, help=flag.help, metavar=flag.metavar)
    return option(flag.name, Annotated[Optional[kind], declared])  # noqa: UP045  a value, not a type
