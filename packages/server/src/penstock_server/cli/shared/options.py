"""Options of commands that are declared in tables and not in the signatures of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., None])


def option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """A parameter that is an option; ``kind`` is its type with its flags, as typer takes them."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def with_options(command: Command, added: Iterable[inspect.Parameter]) -> Command:
    """Add options behind the parameters of a command that have a place; the command takes their
    values in ``**written``."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())
    first = [each for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
    last = [each for each in own if each.kind is each.KEYWORD_ONLY]
    parameters = [*first, *added, *last]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect, and so typer, looks at first
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
