"""What the package defines has a user in it, or in what comes with it: tests alone are none."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scripts.weight.source import statements
from tests.tidy.parsing import tree_of

ROOT = Path(__file__).resolve().parents[2]
USERS = ("packages", "bench", "examples", "docs", "scripts")
KIT = ROOT / "packages" / "testing"
"""Shipped for the tests of others: its users are theirs."""
COMPLETE: dict[str, str] = {
    "packages/mqtt/src/penstock_mqtt/wire/reasons.py": "all reason codes of the standard",
}
"""Files that list all there is of something, used or not."""
CALLED_FROM_OUTSIDE: dict[str, str] = {
    "format_commands": "Click lists the commands of a group with it",
    "collect_usage_pieces": "Click writes the usage line of a command with it",
    "_should_upgrade": "uvicorn asks whether a request opens a WebSocket",
    "handle_websocket_upgrade": "uvicorn has it opened",
    "_instrument": "a name of OpenTelemetry's instrumentors",
    "_uninstrument": "a name of OpenTelemetry's instrumentors",
    "instrumentation_dependencies": "a name of OpenTelemetry's instrumentors",
    "_new_queue": "a name of kombu's channels",
    "_purge": "a name of kombu's channels",
    "_put_fanout": "a name of kombu's channels",
    "body_encoding": "a name of kombu's channels",
    "connection_errors": "a name of kombu's transports",
    "default_port": "a name of kombu's transports",
    "do_restore": "a name of kombu's channels",
    "driver_name": "a name of kombu's transports",
    "driver_type": "a name of kombu's transports",
    "driver_version": "a name of kombu's transports",
    "exception_safe_to_retry": "a name of Celery's result backends",
    "get_table": "a name of kombu's channels",
    "key_t": "a name of Celery's result backends",
    "queue_unbind": "a name of kombu's channels",
    "recoverable_channel_errors": "a name of kombu's transports",
    "recoverable_connection_errors": "a name of kombu's transports",
    "restore_unacked": "a name of kombu's settlement",
    "supports_autoexpire": "a name of Celery's result backends",
    "supports_fanout": "a name of kombu's channels",
    "supports_native_join": "a name of Celery's result backends",
    "advance": "a name of Airflow's shared streams",
    "create_shared_stream_producer": "a name of Airflow's triggers",
    "filter_shared_stream": "a name of Airflow's triggers",
    "get_provider_info": "a name of Airflow's providers",
    "open_stream": "a name of Airflow's shared streams",
    "queue_matches": "a name of Airflow's message queues",
    "shared_stream_key": "a name of Airflow's triggers",
    "trigger_class": "a name of Airflow's message queues",
    "trigger_kwargs": "a name of Airflow's message queues",
    "channel_labels": "a name of FastStream's specifications",
    "get_publish_attrs_from_cmd": "a name of FastStream's telemetry",
    "get_publish_destination_name": "a name of FastStream's telemetry",
    "get_publish_destination_name_from_cmd": "a name of FastStream's metrics",
    "_fake_connect": "a name of FastStream's test brokers",
    "_patch_producer": "a name of FastStream's test brokers",
    "create_publisher_fake_subscriber": "a name of FastStream's test brokers",
    "broker_class": "a name of FastStream's routers for FastAPI",
    "_make_response_publisher": "a name of FastStream's subscribers",
    "get_log_context": "a name of FastStream's subscribers",
    "register_subscriber": "a name of FastStream's logs",
}
"""Names that a library asks for, each with who does."""


@cache
def _words() -> Counter[str]:
    """Return how often each word occurs in the package and in the code that uses it."""
    words: Counter[str] = Counter()
    for folder in USERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".js", ".toml", ".html"} and path.is_file():
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return words


@cache
def _used() -> frozenset[str]:
    """Words that stand somewhere else than where they are defined."""
    return frozenset(word for word, count in _words().items() if count > 1)


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes, constants and fields; a decorator is a use."""
    for node in statements(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if all(_is_of_python(decorator) for decorator in node.decorator_list):
                    yield node.name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def _is_of_python(decorator: ast.expr) -> bool:
    """Whether it says how a name is used, and is not itself who uses it."""
    return ast.unparse(decorator).split("(")[0] in {
        "property",
        "cached_property",
        "classmethod",
        "staticmethod",
        "cache",
        "lru_cache",
        "overload",
        "contextmanager",
        "asynccontextmanager",
    }


def _unused(source: str) -> list[str]:
    names = {name for name in _defined(tree_of(source)) if not name.startswith("__")}
    return sorted(names - CALLED_FROM_OUTSIDE.keys() - _used())


def test_every_name_has_a_user() -> None:
    unused = {
        path.relative_to(ROOT).as_posix(): names
        for path in ROOT.glob("packages/*/src/**/*.py")
        if KIT not in path.parents
        and path.relative_to(ROOT).as_posix() not in COMPLETE
        and (names := _unused(path.read_text(encoding="utf-8")))
    }

    assert unused == {}, "delete what nothing but a test uses"


def test_a_name_without_a_user_is_found() -> None:
    source = "class Lonely_1:\n    @property\n    def alone_2(self): ...\nALONE_3 = 1\n"

    assert _unused(source) == ["ALONE_3", "Lonely_1", "alone_2"]
    assert _unused("@command\ndef alone_4(): ...\nclass Realm: ...\n") == []
