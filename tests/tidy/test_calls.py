"""What is passed can be read where it stands: no literal is unpacked where its items can stand, and
a call of the package's own gives at most three values by position."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.tidy.parsing import parsed, sources

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("packages", "bench", "examples", "scripts", "tests")
POSITIONAL_MAX: Final = 3
UNPACKED: Final = re.compile(r"\*[(\[{]")
"""Text of files with an unpacked literal; parsing all files would take twenty seconds."""

HOT: Final = {
    "sets of ids: several times for each event": """
        penstock_core.ids.bitmaps _join cut part put
        penstock_core.ids.ids cut part put
        penstock_core.ids.packing _write_runs
        penstock_core.ids.ranges cut
    """,
    "decisions and facts: for each publish, offer or acknowledgement": """
        penstock_core.channel.decide not_recalled refuse_recalled
        penstock_core.channel.holding refuse_recalled
        penstock_core.channel.offer _deliver_granted _find_next_lanes
        penstock_core.channel.offer _offer_durable
        penstock_core.channel.publish Appended _appended _dead not_received refuse_when_full
        penstock_core.channel.recall recalled_of
        penstock_core.channel.timeouts refuse_recalled
        penstock_core.durable.lanes self._lowest_not_refused
        penstock_server.runtime.delivery.delivery self.send
    """,
    "events of a client: for each event or publish": """
        penstock.client.publishing.publishing self._send
        penstock_core.columns.events.event EventOptions
    """,
    "properties: for each property of a row": """
        penstock_core.columns.schema.nested_columns _read_inner
        penstock_core.columns.schema.properties PropertyColumns _Cell _ArrowRow
        penstock_core.columns.schema.properties _cells _gaps _gaps_inside
        _gaps_inside """,
    "selectors: for each batch and operator": """
        penstock_core.columns.selectors.comparison _compared
        penstock_core.columns.selectors.compiler _any
        penstock_core.columns.selectors.index self._look_up
        penstock_core.columns.selectors.patterns self._find_at_once
    """,
    "AMQP: for each frame or message": """
        penstock_amqp.addresses LinkDestination
        penstock_amqp.checked_frames _KnownFrame _count_matches
        penstock_amqp.engine self._add_part
        penstock_amqp.gate self._check_in_session self._check_transfer
        penstock_amqp.incoming Row _message_properties _add_inexpressible
        penstock_amqp.incoming _read_typed_id _read_user_and_group
        penstock_amqp.outgoing _split_properties _encode_message_properties _encode_rest
        penstock_amqp.producers find_destination self._answer self._submit
        penstock_amqp.single_message Body
        penstock_amqp.wire.frames Frame
        penstock_amqp.wire.performatives Performative
    """,
    "MQTT: for each packet or message": """
        penstock_mqtt.connection plain_messages
        penstock_mqtt.fan_out self._distribute_run
        penstock_mqtt.messages PublishPacket TopicMessage _message_at packet_properties
        penstock_mqtt.outbox InFlight WaitingMessage self._encode
        penstock_mqtt.wire.framing plain_messages
        penstock_mqtt.wire.reading PublishPacket _read_plain_publish
    """,
}
"""Calls that run so often that a keyword costs time: why, the module, and what it calls. The list
only shrinks."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def test_no_literal_is_unpacked() -> None:
    """``*("a", "b")`` says the same as ``"a", "b"``, and hides how many values there are."""
    starred = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if UNPACKED.search(path.read_text(encoding="utf-8"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
    ]

    assert starred == []


def test_what_follows_the_third_value_of_a_call_goes_by_keyword() -> None:
    """Ruff's FBT003 does the same for booleans. Checked are calls of functions, classes and methods
    of ``self`` that the source alone resolves; other methods need types."""
    excepted = {
        (module, name)
        for calls in HOT.values()
        for module, *names in map(str.split, calls.strip().splitlines())
        for name in names
    }
    lines: dict[tuple[str, str], list[int]] = {}
    for module in modules():
        for name, line in long_calls(module):
            lines.setdefault((module, name), []).append(line)

    assert {call: line for call, line in lines.items() if call not in excepted} == {}
    assert excepted - lines.keys() == set(), "mended: take these off the list"


def test_calls_of_the_source_are_resolved() -> None:
    calls = """
from penstock_core.ids import ids
from penstock_core.ids.ids import Span as Ids
from penstock_core.ids.ranges import cut

def any_number(*values): ...
def positional(a, b, c, d, /): ...
def four(a, b, c, d): ...

class Made:
    def __init__(self, a, b, c, d): ...
    def method(self, a, b, c, d): ...
    def calls(self):
        self.method(1, 2, 3, 4)
        self.method(1, 2, 3, d=4)
        self.other(1, 2, 3, 4)

any_number(1, 2, 3, 4), positional(1, 2, 3, 4), print(1, 2, 3, 4), self.method(1, 2, 3, 4)
four(1, 2, 3, 4), Made(1, 2, 3, 4)
four(1, 2, 3, d=4), four(*pair, 3, 4), cut(1, 2, 3, 4), Ids(1, 2, 3, 4), ids.Span(1, 2, 3, 4)
"""
    names = [name for name, _ in long_calls_in(ast.parse(calls))]

    assert sorted(names) == ["Ids", "Made", "cut", "four", "ids.Span", "self.method"]


@cache
def modules() -> Mapping[str, Path]:
    """The modules of the source by their dotted names."""
    definitions = {}
    for source in sources():
        definitions[source.module] = source.path
    return definitions


@cache
def names_of(module: str) -> Mapping[str, Definition | str]:
    return names_in(parsed(modules()[module]))


def names_in(tree: ast.Module) -> Mapping[str, Definition | str]:
    """The functions and classes of a module by name, and what it imports of the package as dotted
    names, inside functions as well."""
    names: dict[str, Definition | str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names | {node.name: node for node in tree.body if isinstance(node, Definition)}


def resolved(names: Mapping[str, Definition | str], name: str) -> Definition | None:
    """The definition of a name or of a module's attribute; None if it is not of the package."""
    head, _, attribute = name.partition(".")
    target = names.get(head)
    if not isinstance(target, str):
        return None if attribute else target
    if target in modules():
        return resolved(names_of(target), attribute) if attribute else None
    module, _, imported = target.rpartition(".")
    return resolved(names_of(module), imported) if module in modules() and not attribute else None


def long_calls(module: str) -> Iterator[tuple[str, int]]:
    return long_calls_in(parsed(modules()[module]))


def long_calls_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The calls of the package's own with too many values by position: the name, and the line."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_MAX
    ]
    names = names_in(tree) if calls else {}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for call in calls:
        name = ast.unparse(call.func)
        definition = resolved(names, name)
        for owner in classes:
            if owner.lineno <= call.lineno <= (owner.end_lineno or 0):
                definition = methods_of(owner).get(name, definition)
        if definition is not None and takes_keywords(definition):
            yield name, call.lineno


def methods_of(owner: ast.ClassDef) -> Mapping[str, Definition]:
    return {
        f"self.{method.name}": method for method in owner.body if isinstance(method, Definition)
    }


def takes_keywords(definition: Definition) -> bool:
    """Whether what follows the third value can be given by keyword."""
    if isinstance(definition, ast.ClassDef):
        makers = [
            method
            for method in definition.body
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__new__")
        ]
        return all(map(takes_keywords, makers))  # without one, its fields are its parameters
    parameters = definition.args
    return parameters.vararg is None and len(parameters.posonlyargs) <= POSITIONAL_MAX
