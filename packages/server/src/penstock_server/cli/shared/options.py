"""Command options that are declared in tables instead of in the signatures of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., None])


def option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """Return a parameter for an option; ``kind`` is its annotation for Typer."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def with_options(command: Command, added: Iterable[inspect.Parameter]) -> Command:
    """Add options to a command, after its positional parameters; the command receives their values
    in ``**written``."""
    signature = inspect.signature(command, eval_str=True)
    declared = list(signature.parameters.values())
    first = [item for item in declared if item.kind is item.POSITIONAL_OR_KEYWORD]
    last = [item for item in declared if item.kind is item.KEYWORD_ONLY]
    parameters = [*first, *added, *last]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect, and so Typer, prefers this attribute
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command
