"""Values from outside may be nested so deep that their decoder raises ``RecursionError``: malformed
input like any other, and caught wherever other errors of a decoder are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.parsing import ROOT, SOURCE_FOLDERS, files_below, parsed

MALFORMED = frozenset(
    {
        "msgspec.MsgspecError",
        "msgspec.DecodeError",
        "msgspec.ValidationError",
        "json.JSONDecodeError",
        "tomllib.TOMLDecodeError",
        "jwt.PyJWTError",
    }
)
ENOUGH = frozenset({"RecursionError", "RuntimeError", "Exception", "BaseException"})
DECODERS = frozenset(
    {
        "msgspec.json.decode",
        "msgspec.msgpack.decode",
        "json.loads",
        "tomllib.loads",
        "pj.read_json",
    }
)
OUTSIDE = (
    "packages/amqp/src",
    "packages/core/src/penstock_core/columns",
    "packages/core/src/penstock_core/wire",
    "packages/mqtt/src",
    "packages/server/src/penstock_server/frontends",
    "packages/tools/src/penstock_tools/topology",
)
"""Folders in which every decoder stands in a ``try``."""
_MAY_DECODE = re.compile(r"msgspec|tomllib|json|jwt")
CAUGHT_ELSEWHERE: dict[str, str] = {
    "penstock_core/wire/native/messages.py: decode": "`decode_from_client` catches it",
    "penstock_server/frontends/http/routing.py: decoded": "`_decode` of the request catches it",
    "penstock_server/frontends/http/states.py: _bool": "`_key` catches it",
    "penstock_mqtt/json_payloads.py: _parse": "`columns` has counted the levels",
    "penstock_mqtt/session_store.py: _add_entry": "reads what the realm has written",
    "penstock_core/columns/selectors/summaries.py: statistics_in": "reads what the realm wrote",
    "penstock_core/columns/schema/overflow.py: check_nesting": "a cell is decoded when published",
    "penstock_core/columns/schema/overflow.py: extended": "the cell was decoded when published",
    "penstock_core/columns/schema/overflow.py: typed": "the cell was decoded when published",
    "penstock_core/columns/schema/overflow.py: nodes": "the cell was decoded when published",
    "penstock_core/columns/schema/overflow.py: without": "the cell was decoded when published",
}
"""Functions that let it pass, each with who catches it."""


class Handlers(ast.NodeVisitor):
    """Finds what catches the errors of a decoder, and not those of too much nesting."""

    def __init__(self, tree: ast.Module) -> None:
        self._groups = dict(_groups(tree))
        self._functions: list[str] = []
        self._caught: list[frozenset[str]] = []
        self.careless: list[tuple[str, int]] = []
        self.bare: list[tuple[str, int]] = []
        """Decoders that stand in no ``try`` which catches it."""

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._caught = self._caught, []
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        self._caught = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        caught = frozenset(
            name for handler in node.handlers for name in self._names(handler.type, is_bare=True)
        )
        self._caught.append(caught)
        if caught & MALFORMED and not self._is_careful:
            self.careless.append((self._where, node.lineno))
        for statement in node.body:
            self.visit(statement)
        self._caught.pop()
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_With(self, node: ast.With) -> None:
        suppressed = frozenset(
            name
            for item in node.items
            if isinstance(item.context_expr, ast.Call)
            and ast.unparse(item.context_expr.func).endswith("suppress")
            for argument in item.context_expr.args
            for name in self._names(argument)
        )
        self._caught.append(suppressed)
        if suppressed & MALFORMED and not self._is_careful:
            self.careless.append((self._where, node.lineno))
        self.generic_visit(node)
        self._caught.pop()

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_decoder(node.func) and not self._is_careful:
            self.bare.append((self._where, node.lineno))
        self.generic_visit(node)

    @property
    def _is_careful(self) -> bool:
        return any(names & ENOUGH for names in self._caught)

    @property
    def _where(self) -> str:
        return self._functions[-1] if self._functions else "the module"

    def _is_decoder(self, function: ast.expr) -> bool:
        text = ast.unparse(function)
        return text in DECODERS or text.lower().endswith("decoder.decode")

    def _names(self, node: ast.expr | None, *, is_bare: bool = False) -> Iterator[str]:
        if node is None:
            yield from ("BaseException",) if is_bare else ()
        elif isinstance(node, ast.Tuple):
            for element in node.elts:
                yield from self._names(element)
        elif isinstance(node, ast.Starred):
            yield from self._names(node.value)
        else:
            text = ast.unparse(node)
            yield from self._groups.get(text, [text])


def _groups(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Names of tuples of errors, with what is in them."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            parts = [
                element.value if isinstance(element, ast.Starred) else element
                for element in node.value.elts
            ]
            flat = [
                inner
                for part in parts
                for inner in (part.elts if isinstance(part, ast.Tuple) else [part])
            ]
            yield ast.unparse(target), [ast.unparse(element) for element in flat]


def handlers_below(*folders: str) -> Iterator[tuple[str, Handlers]]:
    for path in files_below(*folders):
        if path.suffix == ".py" and _MAY_DECODE.search(path.read_text(encoding="utf-8")):
            tree = parsed(path)
            handlers = Handlers(tree)
            handlers.visit(tree)
            yield path.as_posix().rpartition("/src/")[2], handlers


def test_who_catches_the_errors_of_a_decoder_catches_too_much_nesting() -> None:
    careless = [
        f"{name}:{line}"
        for name, handlers in handlers_below(*SOURCE_FOLDERS)
        for function, line in handlers.careless
        if f"{name}: {function}" not in CAUGHT_ELSEWHERE
    ]

    assert careless == [], "add RecursionError"


def test_every_decoder_of_what_comes_from_outside_is_tried() -> None:
    bare = [
        f"{name}:{line} {function}"
        for folder in OUTSIDE
        for name, handlers in handlers_below(folder)
        for function, line in handlers.bare
        if f"{name}: {function}" not in CAUGHT_ELSEWHERE
    ]

    assert bare == [], "catch RecursionError there, or say in CAUGHT_ELSEWHERE who does"


def test_every_exception_is_there() -> None:
    for exception in CAUGHT_ELSEWHERE:
        path, _, function = exception.partition(": ")
        (module,) = ROOT.glob(f"packages/*/src/{path}")
        assert f"def {function}(" in module.read_text(encoding="utf-8")
