"""Modules do not import each other in circles, not even for types: what imports whom says where
something belongs, and only a tree can be split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scripts.weight.source import importers
from tests.tidy.parsing import sources

CYCLE_MAX = 2
"""Two modules may name each other's types: an object and what it makes."""


def cycles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """The strongly connected components of more than one module (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            module, rest = work[-1]
            for imported in rest:
                if imported not in index:
                    index[imported] = low[imported] = len(index)
                    stack.append(imported)
                    work.append((imported, iter(sorted(graph[imported]))))
                    break
                if imported in stack:
                    low[module] = min(low[module], index[imported])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    start = stack.index(module)
                    component = stack[start:]
                    del stack[start:]
                    if len(component) > 1:
                        yield sorted(component)


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}

    assert sorted(cycles(graph)) == [["a", "b", "c"], ["e", "f"]]


def test_no_more_than_two_modules_import_each_other() -> None:
    graph = importers(sources())

    wrong = [" <-> ".join(cycle) for cycle in cycles(graph) if len(cycle) > CYCLE_MAX]
    assert wrong == []
