"""The blocking client is as the tool writes it."""

from __future__ import annotations

import ast

import pytest

from scripts import generate_sync


def test_the_blocking_client_is_what_the_tool_writes() -> None:
    texts = {
        name: (generate_sync.SYNC / name).read_text("utf-8") for name in generate_sync.written()
    }

    assert texts == generate_sync.written(), "run python -m scripts.generate_sync"


def test_a_method_that_cannot_be_derived_is_named() -> None:
    source = generate_sync.Source("reading.subscription")
    written = generate_sync.Class("Subscription", source, generate_sync.Imports("elsewhere"))
    method = ast.parse("def each(self) -> AsyncIterator[Event]: ...").body[0]
    assert isinstance(method, ast.FunctionDef)

    with pytest.raises(
        generate_sync.NotDerivable, match=r"Subscription\.each returns AsyncIterator"
    ):
        list(written._method(method))
