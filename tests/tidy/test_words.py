"""One word for one thing: names in the packages and benchmarks are those of the glossary in
CONTRIBUTING.md. And a docstring is understood where it stands: it does not begin with a word that
means its neighbour."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.parsing import parsed, tree_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = tuple(sorted((*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("bench/**/*.py"))))
"""The modules of the packages and of the benchmarks."""

ALLOWED = {
    "topic": (
        "penstock_amqp/addresses.py",  # the word of JMS for a channel
        # a name in levels, as MQTT has it
        "penstock_mqtt/wire/",
        "penstock_core/vocabulary/topic",
        "penstock_core/realm/topic_table.py",
        "penstock_core/columns/selectors/topic_search.py",
        "penstock_mqtt/",
        "penstock_core/api/topics.py",
        "penstock_mqtt/topic_routes.py",
        "penstock_mqtt/topic_handlers.py",
        "penstock_server/runtime/subscriptions/topic_tree.py",
        "penstock_server/runtime/subscriptions/realm_view.py",
        "penstock/client/handles/access.py",
        "penstock/client/sync/sync_access.py",
        "bench/mqtt_load.py",
    ),
    # the servers of others that Penstock is compared with; options and methods of kombu and Celery;
    # the word of FastStream for its connection
    "broker": ("bench/", "penstock_celery/channel.py", "penstock_faststream/"),
    "nack": ("penstock_faststream/message.py",),  # methods of FastStream
    "patch": ("penstock_faststream/publisher.py", "penstock_faststream/testing.py"),
    "prefetch_count": ("penstock_celery/delivery.py",),
    "unacked": ("penstock_celery/delivery.py",),
    "visibility": ("penstock_celery/channel.py",),
    # the word of MQTT for the name of a session
    "client_id": (
        "penstock_mqtt/wire/",
        "penstock_mqtt/",
        "penstock_core/access/acl.py",
        "penstock_core/api/topics.py",
        "penstock_mqtt/topic_routes.py",
        "bench/mqtt_load.py",
    ),
    "msg": (
        "penstock_cluster/storage/jetstream/asking.py",  # a method of nats-py that is overridden
        "penstock_faststream/",  # arguments of FastStream
    ),
    "snoop": (
        "penstock_server/frontends/http/live.py",
    ),  # a live view looks on without taking part
}
"""Words of the last column where they are the right ones, by where that is."""

OPENINGS = ("Of ", "The same", "Those ")
"""First words that a docstring must not have: the sentence would lose its meaning if the code
before it moved."""

_ROW = re.compile(r"^\| (?!word|-)(?:[^|]+)\|(?:[^|]+)\| (.*) \|$", re.MULTILINE)
_WORD = re.compile(r"`([a-z_]+)`")
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def refused() -> set[str]:
    """The words that the glossary does not want as names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Words\n")[2].partition("\n## ")[0]
    cells = [cell.partition(";")[0] if "; " in cell else cell for cell in _ROW.findall(section)]
    return {word for cell in cells for word in _WORD.findall(cell)}


def names_in(tree: ast.AST) -> Iterator[str]:
    """The names that a module gives, and not those it uses."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case _:
                pass


def docstrings_in(tree: ast.AST) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and those under attributes and constants."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case _:
                pass


def spelled(name: str) -> str:
    """A name as words between underlines."""
    return f"_{_PARTS.sub('_', name).lower().strip('_')}_"


def has_word(name: str, word: str) -> bool:
    return f"_{word}_" in spelled(name)


def misnamed(words: set[str]) -> dict[str, list[str]]:
    places_by_word: dict[str, list[str]] = {}
    for path in SOURCES:
        where = path.as_posix().partition("/src/")[2] or path.relative_to(ROOT).as_posix()
        for name in {path.stem, *names_in(parsed(path))}:
            parts = spelled(name)
            for word in words:
                if f"_{word}_" in parts and not where.startswith(ALLOWED.get(word, ())):
                    places_by_word.setdefault(word, []).append(f"{where}: {name}")
    return places_by_word


def test_names_are_the_words_of_the_glossary() -> None:
    assert misnamed(refused()) == {}


def test_the_glossary_says_what_a_word_is_not() -> None:
    assert {"broker", "msg", "nack", "dlq", "event_offset", "snoop"} <= refused()
    assert "message" not in refused()
    assert set(ALLOWED) <= refused()


def test_a_word_that_is_refused_is_found_wherever_it_is_given() -> None:
    source = "class DlqStore: ...\ndef take(msg_id): self.last_msg = 1\nfor a in b: message = 1\n"

    names = set(names_in(tree_of(source)))

    assert {name for name in names if has_word(name, "msg")} == {"msg_id", "last_msg"}
    assert {name for name in names if has_word(name, "dlq")} == {"DlqStore"}


def test_docstrings_begin_with_what_they_are_about() -> None:
    docstrings = {
        f"{path.relative_to(ROOT)}: {text[:60]}"
        for path in SOURCES
        for text in docstrings_in(parsed(path))
        if text.startswith(OPENINGS)
    }

    assert docstrings == set()


def test_a_docstring_is_found_wherever_it_stands() -> None:
    source = '"""Of a module."""\nA = 1\n"""The same."""\ndef f():\n    """Those of f."""\n'

    assert [text for text in docstrings_in(tree_of(source)) if text.startswith(OPENINGS)] == [
        "Of a module.",
        "The same.",
        "Those of f.",
    ]
