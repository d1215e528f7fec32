"""The tests that the page about testing shows pass, as its reader runs them."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, blocks

FILES = {
    block.file: block.text
    for block in blocks(ROOT / "docs" / "guide" / "testing.md")
    if block.file.startswith("test_")
}


@pytest.mark.slow
@pytest.mark.process
def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    """In a process of its own: the run imports libraries that cannot be imported twice."""
    for name, text in FILES.items():
        (pytester.path / name).write_text(text, encoding="utf-8")

    result = pytester.runpytest_subprocess("-W", "error", *FILES)

    assert result.ret == pytest.ExitCode.OK
    assert {line.split()[0] for line in result.outlines if "100%" in line or ".py ." in line} == {
        *FILES
    }
