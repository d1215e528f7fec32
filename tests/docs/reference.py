"""Writes the generated tables of the guide and the pages of the reference: ``python -m
tests.docs.reference``."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

from penstock_core.vocabulary.errors import PenstockError, error_classes
from penstock_server.settings.loading import described, variable_of
from tests.docs.generated_cli import cli_page
from tests.docs.generated_python import python_page
from tests.docs.generated_tables import (
    attributes_page,
    errors_page,
    http_page,
    log_page,
    meanings_in,
    settings_page,
)
from tests.docs.pages import PAGES, ROOT
from tests.semantics import page as semantics

OPERATING = ROOT / "docs" / "guide" / "operating.md"
REFERENCE = ROOT / "docs" / "reference"

_RULE = re.compile(r"\s*\(SEM [^)]*\)")
_CITATION = re.compile(r"(?<!\[)SEM ([A-Z]\d*[a-z]?(?:, [A-Z]\d*[a-z]?)*)\b")


def settings_table() -> str:
    """Return the table of all options of the server."""
    rows = [
        f"| `{path}` | `{default}` | `{variable_of(path)}` | {_RULE.sub('', sentence)} |"
        for path, default, sentence in described()
    ]
    return "\n".join(["| option | default | variable | meaning |", "|---|---|---|---|", *rows])


def errors_table(remedies: dict[str, str]) -> str:
    """Return the table of all error codes, with their causes and remedies."""
    classes = error_classes()
    rows = [f"{_error(classes[code])} {remedies.get(code, '')} |" for code in sorted(classes)]
    head = "| code | class | cause | later | what to do |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def _error(error_class: type[PenstockError]) -> str:
    cause = " ".join(_RULE.sub("", inspect.getdoc(error_class) or "").replace("``", "`").split())
    later = "yes" if error_class.retryable else "no"
    return f"| `{error_class.code}` | `{error_class.__name__}` | {cause} | {later} |"


def written(page: Path, name: str) -> str:
    """Return the table between the marks ``begin name`` and ``end name``."""
    section = _marked(name).search(page.read_text(encoding="utf-8"))
    assert section is not None, f"{page.name} has no place for {name}"
    return section[2].strip()


def remedies_in(table: str) -> dict[str, str]:
    """Return the last column of the table of errors, by code."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row[4].strip() for row in rows if len(row) == 5}


def reference_pages() -> dict[str, str]:
    """Return the generated pages of ``docs/reference``, by name."""
    guide = OPERATING.read_text(encoding="utf-8")
    return {
        "attributes.md": attributes_page(),
        "cli.md": cli_page(),
        "errors.md": errors_page(remedies_in(written(OPERATING, "errors"))),
        "http.md": http_page(),
        "log.md": log_page(meanings_in(guide)),
        "python.md": python_page(),
        "settings.md": settings_page(),
    }


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin {name}\b[^\n]*-->\n)(.*?)(<!-- end {name} -->)", re.DOTALL)


def _write(page: Path, name: str, table: str) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(
        _marked(name).sub(lambda match_: f"{match_[1]}\n{table}\n\n{match_[3]}", text),
        encoding="utf-8",
    )


def linked(text: str, page_of_rules: str) -> str:
    """Return the text with a link for each rule that it cites."""
    return _CITATION.sub(
        lambda match_: ", ".join(
            f"[SEM {rule}]({page_of_rules}#{semantics.anchor_of(rule)})"
            for rule in match_[1].split(", ")
        ),
        text,
    )


def _link_rules(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(linked(text, os.path.relpath(semantics.PAGE, page.parent)), encoding="utf-8")


if __name__ == "__main__":
    _write(OPERATING, "settings", settings_table())
    _write(OPERATING, "errors", errors_table(remedies_in(written(OPERATING, "errors"))))
    for name, text in reference_pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    semantics.renew()
    for page in PAGES:
        _link_rules(page)
