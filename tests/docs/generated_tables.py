"""Generates the reference pages that consist of tables: attributes, errors, settings, log lines and
HTTP."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import error_classes
from penstock_server.frontends.http.openapi import document
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.routing import BASE
from penstock_server.frontends.http.statuses import STATUSES
from penstock_server.settings.loading import described, variable_of
from tests.docs.markdown import cell, prose, table
from tests.docs.pages import ROOT

_LEVELS = {"debug": "debug", "info": "info", "warning": "warning"}
_LEVELS |= {"error": "error", "exception": "error"}


def attributes_page() -> str:
    """Return the page of all attributes of channels and queues."""
    storage = [(f"storage.{name}", *rest) for name, *rest in _attributes(Storage)]
    attributes = [
        attribute
        for attribute in _attributes(Definition)
        if attribute[0] not in ("storage", "kind")
    ]
    rows = [[f"`{name}`", default, cell(text)] for name, default, text in [*attributes, *storage]]
    head = """# Attributes of channels and queues

Written from the code.
Given when a channel is made and changed later: \
how they work together is in the [guide](../guide/channels.md#attributes).

"""
    return head + table(["attribute", "default", "meaning"], rows) + "\n"


def _attributes(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    texts = dict(documented(struct))
    for field in msgspec.structs.fields(struct):
        value = field.default
        shown = "" if value is msgspec.NODEFAULT or value in ("", b"") else f"`{value}`"
        yield field.name, shown, texts[field.name]


def documented(owner: type) -> list[tuple[str, str]]:
    """Return the fields of a class in the order of the source, each with the text below it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    constants = []
    for line, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            constants.append((line.target.id, _string(after)))
    return [(name, text) for name, text in constants if not name.startswith("_")]


def _string(line: ast.stmt | None) -> str:
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
        return str(line.value.value)
    return ""


def settings_page() -> str:
    """Return the page of all server options, with a table for each section."""
    sections: dict[str, list[list[str]]] = {}
    for path, default, sentence in described():
        shown = "" if default in ("", None) else f"`{default}`"
        row = [f"`{path}`", shown, f"`{variable_of(path)}`", cell(sentence)]
        sections.setdefault(path.partition(".")[0], []).append(row)
    parts = [
        """# Settings

Written from the code; `penstock settings` lists the same.
What a file looks like, and what wins over what: [settings](../guide/operating.md#settings).
"""
    ]
    for name, rows in sections.items():
        parts += [f"## {name}\n", table(["option", "default", "variable", "meaning"], rows) + "\n"]
    return "\n".join(parts)


def errors_page(remedies: dict[str, str]) -> str:
    """Return the page of all errors: code, class, HTTP status, cause and remedy."""
    rows = []
    for code, error_class in sorted(error_classes().items()):
        cause = cell(inspect.getdoc(error_class) or "")
        status = str(STATUSES.get(code, ""))
        later = "yes" if error_class.retryable else ""
        remedy = _moved(remedies.get(code, ""))
        rows.append([f"`{code}`<br>`{error_class.__name__}`", status, later, cause, remedy])
    head = """# Errors

Written from the code; `penstock error CODE` says the same.
The code is in brackets at the end of a command's message, and in the answers of the \
[API](http.md); the class is one of `penstock`.
*Later* means that the same may succeed later.

"""
    return head + table(["code and class", "HTTP", "later", "cause", "what to do"], rows) + "\n"


def _moved(text: str) -> str:
    """Adapt the links in a text from a page of the guide."""
    text = re.sub(r"\]\(#", "](../guide/operating.md#", text)
    return re.sub(r"\]\((?!\.\./|https?:)", "](../guide/", text)


def log_page(meanings: dict[str, str]) -> str:
    """Return the page of all log lines, with their levels and fields."""
    keys_by_name: dict[str, tuple[set[str], set[str]]] = {}
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        for name, level, keys in _logged(path):
            levels, keys_of_level = keys_by_name.setdefault(name, (set(), set()))
            levels.add(level)
            keys_of_level |= keys
    rows = [
        [f"`{name}`", _words(levels), _words(f"`{key}`" for key in keys), meanings.get(name, "")]
        for name, (levels, keys) in sorted(keys_by_name.items())
    ]
    head = """# Lines of the log

Written from the code.
Each is one event with its keys, as text or JSON: [logs](../guide/operating.md#logs).

"""
    return head + table(["event", "level", "keys", "means"], rows) + "\n"


def _words(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def _logged(path: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Yield the calls such as ``_log.info("realm.stopped", reason=...)`` in a file."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if "_log" in source else ():
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="_log"), attr=level),
                args=[ast.Constant(value=str(name)), *_],
                keywords=keywords,
            ) if level in _LEVELS:
                yield name, _LEVELS[level], {keyword.arg for keyword in keywords if keyword.arg}


def meanings_in(page: str) -> dict[str, str]:
    """Return the meaning of each log line from the table of the guide."""
    rows = {}
    for line in page.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == 3 and re.fullmatch(r"(`[a-z_.]+`(, )?)+", cells[0]):
            for name in re.findall(r"`([a-z_.]+)`", cells[0]):
                rows[name] = _moved(cells[2])
    return rows


def http_page() -> str:
    """Return the page of all routes of the administration API, from its OpenAPI document."""
    sections: dict[str, list[str]] = {}
    for path, operations in sorted(document(TABLE, "0")["paths"].items()):
        for method, operation in operations.items():
            part = sections.setdefault(operation["tags"][0], [])
            part += _route(f"{method.upper()} {path.removeprefix(BASE)}", operation)
    parts = [
        """# HTTP API

Written from the document a realm serves at `/api/v1/openapi.json`; \
every path begins with `/api/v1`.
Each says what generated clients call it, and the operation whose right it needs.
How to sign in, page and stream: [HTTP](../guide/rest.md).
Refusals are `{"error": {"code": …, "message": …}}` with the status of the [error](errors.md).
"""
    ]
    for name in sorted(sections):
        parts += [f"## {name}\n", *sections[name]]
    return "\n".join(parts)


def _route(title: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### `{title}`\n"
    yield " ".join(prose(operation["summary"]).split()) + "\n"
    if text := operation.get("description"):
        yield prose(text) + "\n"
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        yield f"Body: {', '.join(_content(kind, what) for kind, what in content.items())}.\n"
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            content = answer["content"]
            content_text = ", ".join(_content(kind, what) for kind, what in content.items())
            yield f"Answer: {status}, {content_text}.\n"
    yield f"Called `{operation['operationId']}`; right: `{operation['x-operation']}`.\n"
    rows = [
        _parameter(parameter) for parameter in operation["parameters"] if parameter["in"] == "query"
    ]
    if rows:
        yield table(["parameter", "type", "meaning"], rows) + "\n"


def _content(kind: str, what: dict[str, Any]) -> str:
    name = what.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"`{name}` as `{kind}`" if name else f"`{kind}`"


def _parameter(parameter: dict[str, Any]) -> list[str]:
    schema = parameter["schema"]
    kind = " or ".join(schema["enum"]) if "enum" in schema else schema["type"]
    default = f" Default `{schema['default']}`." if schema.get("default") not in (None, "") else ""
    required = " Required." if parameter["required"] else ""
    text = cell(parameter.get("description", "") + required + default)
    return [f"`{parameter['name']}`", str(kind), text]
