"""A copy of the packages with a counter in each branch, and a server that reports the number of
branches reached.

``make_covered_copy`` copies the packages and compiles them with a call in each branch; the copy
runs as ``python -m tests.fuzz.covered serve …``. The call is ``set.add`` with the branch's number,
some 50 ns. The process that sends the inputs asks for the count after each of them.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import marshal
import os
import shutil
import socket
import struct
import threading
from itertools import count
from pathlib import Path
from typing import Final

SOCKET: Final = "FUZZ_BRANCHES_SOCKET"
"""Environment variable with the path of the socket."""
REACHED: Final = "__reached__"
"""Name of the builtin function that the branches call."""
COVERED: Final = ("penstock_amqp", "penstock_core", "penstock_mqtt", "penstock_server")
"""Packages with counters, except their command lines: a realm hardly uses the other packages."""
PATIENCE_S: Final = 60.0
_ANSWER: Final = struct.Struct("<Q")
_UNCHECKED: Final = (1).to_bytes(4, "little") + bytes(8)
"""Flags and hash of compiled code that Python does not compare with the source (PEP 552)."""


class Branches(ast.NodeTransformer):
    """Inserts a call of ``REACHED`` into each branch of a module."""

    def __init__(self) -> None:
        self._numbers = count()

    @property
    def count(self) -> int:
        """Number of branches; to be read after the last module."""
        return next(self._numbers)

    def with_counters(self, source: str, path: str) -> ast.Module:
        tree = self.visit(ast.parse(source, path))
        assert isinstance(tree, ast.Module)
        return ast.fix_missing_locations(tree)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = 1 if ast.get_docstring(node, clean=False) is not None else 0
            node.body[start:start] = [self._statement(node)]
        elif isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
            node.body.insert(0, self._statement(node))
            node.orelse.insert(0, self._statement(node))
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            node.body.insert(0, self._statement(node.body[0]))
        elif isinstance(node, ast.BoolOp):
            node.values[1:] = map(self._expression, node.values[1:])
        elif isinstance(node, ast.IfExp):
            node.body = self._expression(node.body)
            node.orelse = self._expression(node.orelse)
        return node

    def _call(self, place: ast.AST) -> ast.Call:
        name = ast.Name(REACHED, ast.Load())
        call = ast.Call(name, [ast.Constant(next(self._numbers))], [])
        return ast.copy_location(call, place)

    def _statement(self, place: ast.AST) -> ast.stmt:
        return ast.copy_location(ast.Expr(self._call(place)), place)

    def _expression(self, branch: ast.expr) -> ast.expr:
        """Add the counter to an expression: ``REACHED`` returns None, so the value is that of the
        branch."""
        return ast.copy_location(ast.BoolOp(ast.Or(), [self._call(branch), branch]), branch)


def make_covered_copy(folder: Path) -> int:
    """Copy the packages into a folder for ``PYTHONPATH``; return their number of branches."""
    for name in COVERED:
        # an import would happen before the counters are installed
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    branches = Branches()
    for path in sorted(folder.rglob("*.py")):
        if "cli" in path.relative_to(folder).parts:
            continue
        tree = branches.with_counters(path.read_text(), str(path))
        compiled = Path(importlib.util.cache_from_source(str(path)))
        compiled.parent.mkdir(exist_ok=True)
        code = marshal.dumps(compile(tree, str(path), "exec", dont_inherit=True))
        compiled.write_bytes(importlib.util.MAGIC_NUMBER + _UNCHECKED + code)
    return branches.count


class BranchCount:
    """The branch count of a covered server, read over its socket."""

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(PATIENCE_S)
        self._connection.connect(str(path))

    def read(self) -> int:
        """Return the number of branches reached so far. Raises ``OSError`` if the server has
        ended."""
        self._connection.sendall(b"?")
        answer = self._connection.recv(_ANSWER.size)
        if len(answer) < _ANSWER.size:
            raise ConnectionResetError("the server has ended")
        [reached] = _ANSWER.unpack(answer)
        return int(reached)

    def close(self) -> None:
        self._connection.close()


def _answer(listening: socket.socket, reached: set[int]) -> None:
    connection, _ = listening.accept()
    with connection:
        while connection.recv(1):
            connection.sendall(_ANSWER.pack(len(reached)))


def main() -> None:
    reached: set[int] = set()
    setattr(builtins, REACHED, reached.add)
    from penstock_server.cli import main as command_line

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[SOCKET])
    listening.listen(1)
    threading.Thread(target=_answer, args=(listening, reached), daemon=True).start()
    command_line()


if __name__ == "__main__":
    main()
