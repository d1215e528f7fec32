"""Generates the reference page of the Python API from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import penstock
import penstock.tables
from penstock.client.reading import delivered, key_state
from penstock.client.sync import (
    sync_access,
    sync_channels,
    sync_delivered,
    sync_durable_subscription,
    sync_durables,
    sync_holding,
    sync_joins,
    sync_merging,
    sync_producer,
    sync_queues,
    sync_subscription,
    sync_transaction,
)
from penstock.client.sync.sync_destination import Schedule
from penstock_testing.virtual_realm import VirtualRealm
from tests.docs.generated_tables import documented
from tests.docs.markdown import prose

HEAD = """# Python

Written from signatures and docstrings.
This is the blocking client; `penstock.aio` has the same classes with the same methods, \
to be awaited: `await channel.publish(...)`, `async with`, `async for`.
Everything refused raises one of the [errors](errors.md), each a class of `penstock`.
"""

CLASSES: dict[str, list[type]] = {
    "Realm and session": [penstock.Realm, penstock.Session],
    "Events": [
        penstock.Event,
        penstock.Origin,
        penstock.EventBatch,
        delivered.DeliveredEvent,
        sync_delivered.DeliveredBatch,
    ],
    "Channels": [
        sync_channels.Channels,
        sync_channels.Channel,
        sync_subscription.Subscription,
        sync_producer.Producer,
        sync_transaction.Transaction,
        sync_transaction.JointTransaction,
        sync_merging.Registered,
        key_state.KeyState,
        Schedule,
    ],
    "Durables": [
        sync_durables.Durables,
        sync_durables.Durable,
        sync_durable_subscription.DurableSubscription,
        sync_holding.DurableHold,
    ],
    "Queues and joins": [
        sync_queues.Queues,
        sync_queues.Queue,
        sync_queues.Reader,
        sync_joins.Joins,
    ],
    "Users and rights": [sync_access.Access],
    "Tables": [penstock.tables.Table],
    "Tests": [VirtualRealm],
}

_REST = re.compile(r"::\n\n(?! )(.*)\Z", re.DOTALL)
"""A literal block to the end of a text whose indentation was removed."""
_BLOCK = re.compile(r"::\n\n((?:(?: {4}[^\n]*)?\n)+)")


def python_page() -> str:
    """Return the page: each public class with its members."""
    parts = [HEAD, "## connect\n", _call("penstock.connect", penstock.connect)]
    parts += ["## segments\n", _call("penstock.segments", penstock.segments)]
    for title, classes in CLASSES.items():
        parts.append(f"## {title}\n")
        for class_ in classes:
            parts += _class(class_)
    return "\n".join(parts)


def _class(class_: type) -> Iterator[str]:
    yield f"### {class_.__name__}\n"
    yield _text(inspect.getdoc(class_) or "")
    if class_ is penstock.Realm:
        yield _call("Realm", class_.__init__, own=False)
    fields = [f"- `{name}`{_dash(text)}" for name, text in _fields(class_)]
    if fields:
        yield "\n".join(fields) + "\n"
    for name, member in _members(class_):
        if isinstance(member, FunctionType):
            yield _call(name, member)


def _members(class_: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members in the order of the source, inherited ones last."""
    seen: set[str] = set()
    for owner in class_.__mro__:
        if not owner.__module__.startswith("penstock"):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, inspect.unwrap(getattr(member, "__func__", member))


def _fields(class_: type) -> Iterator[tuple[str, str]]:
    """Yield the fields, with the texts below them, and the properties."""
    seen = set()
    for owner in class_.__mro__:
        if owner.__module__.startswith("penstock"):
            for name, text in documented(owner):
                if name not in seen:
                    seen.add(name)
                    yield name, text
    for name, member in _members(class_):
        if isinstance(member, property):
            yield name, inspect.getdoc(member) or ""


def _call(name: str, function: Any, *, own: bool = True) -> str:
    """Yield the signature of a function and its docstring."""
    signature = inspect.signature(function)
    kept = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    shown = _shown(name, signature.replace(parameters=kept))
    text = _text(inspect.getdoc(function) or "") if own else ""
    return f"```python\n{shown}\n```\n\n{text}"


def _shown(name: str, signature: inspect.Signature) -> str:
    """Return a signature: on one line if it fits, otherwise with one parameter on each line."""
    line = _plain(f"{name}{signature}")
    if len(line) <= 88:
        return line
    parameters = []
    for parameter in signature.parameters.values():
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        is_first = signature.parameters[parameter.name] is next(
            (
                candidate
                for candidate in signature.parameters.values()
                if candidate.kind is parameter.KEYWORD_ONLY
            ),
            None,
        )
        if is_first and parameter.VAR_POSITIONAL not in kinds:
            parameters.append("    *,")
        parameters.append(f"    {_plain(str(parameter))},")
    answer = signature.return_annotation
    arrow = "" if answer is inspect.Signature.empty else f" -> {_plain(_annotation(answer))}"
    return "\n".join([f"{name}(", *parameters, f"){arrow}"])


def _annotation(answer: Any) -> str:
    return answer if isinstance(answer, str) else inspect.formatannotation(answer)


def _plain(text: str) -> str:
    """Return an annotation without quotes."""
    return re.sub(r"((?::|->) )'([^']*)'", r"\1\2", text)


def _dash(text: str) -> str:
    return f": {' '.join(prose(text).split())}" if text else ""


def _text(docstring: str) -> str:
    """Return a docstring as Markdown, with its literal blocks as code blocks."""
    blocks = _BLOCK.sub(_fence, _REST.sub(_fence, docstring + "\n"))
    return prose(blocks).strip() + "\n"


def _fence(match: re.Match[str]) -> str:
    return f":\n\n```python\n{textwrap.dedent(match[1]).strip()}\n```\n\n"
