"""Names on the pages exist, and everything that exists is on the pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
import penstock.aio
import penstock_faststream
from penstock.client.connection.credentials import PASSWORD_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE
from penstock_core.columns.events.event import Origin
from penstock_core.columns.selectors.parser import parse
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.deprecation import DEPRECATED_CHANNELS, DEPRECATED_DURABLES
from penstock_core.vocabulary.errors import error_classes
from penstock_server.bootstrap import rules
from penstock_server.cli.access.access import NEW_PASSWORD_VARIABLE
from penstock_server.settings.loading import described, load, variable_of
from penstock_tools.cli.bridging import PASSWORD_VARIABLE as SOURCE_PASSWORD_VARIABLE
from tests.docs.pages import GUIDE, PAGES, ROOT, blocks, name_of, prose
from tests.docs.reference import (
    OPERATING,
    REFERENCE,
    errors_table,
    linked,
    reference_pages,
    remedies_in,
    settings_table,
    written,
)
from tests.semantics import page as semantics
from tests.semantics.page import PAGE, anchor_of, cited_in
from tests.tidy.parsing import parsed

ADVICE = "run python -m tests.docs.reference"

NOT_OURS = frozenset(
    {
        "AnalysisException",
        "PySparkRuntimeError",
        "PySparkValueError",
        "DataFrame",
        "FileDescriptorSet",
        "StreamingQueryException",
        "MessageQueueTrigger",
        "QueueRequestor",
        "TopicRequestor",
    }
)
"""Classes the pages name that are other libraries'."""

WITHOUT_RULES = frozenset({"README", "installing", "sizing", "upgrading"})
"""Pages of the guide that explain no rule of the semantics: a list, what an installation takes,
figures, and what versions do to each other."""

_CODE = re.compile(r"`([^`\n]+)`")
_CLASS = re.compile(r"(?:penstock\.)?((?:[A-Z][a-z]+){2,})")
_OPTION = re.compile(r"(?:listen|limits|storage|log)\.[a-z_]+")
_VARIABLE = re.compile(r"\bPENSTOCK_[A-Z_]+")


def marked(page: Path) -> Iterator[str]:
    """Everything in back quotes."""
    for code in _CODE.finditer(prose(page)):
        yield code[1]


def channel_attributes() -> set[str]:
    """Names such as ``storage.sync`` are attributes of a channel, not options of the server."""
    return {f"storage.{name}" for name in Storage.__struct_fields__}


def test_the_table_of_settings_is_what_the_server_takes() -> None:
    assert written(OPERATING, "settings") == settings_table(), ADVICE


def test_the_table_of_errors_is_what_the_code_raises() -> None:
    table = written(OPERATING, "errors")
    remedies = remedies_in(table)

    assert table == errors_table(remedies), ADVICE
    assert [code for code in error_classes() if not remedies.get(code)] == []


@pytest.mark.slow
def test_the_reference_is_what_the_code_says() -> None:
    for name, text in reference_pages().items():
        assert (REFERENCE / name).read_text(encoding="utf-8") == text, f"{name}: {ADVICE}"


def test_code_of_the_reference_is_not_escaped() -> None:
    """Markdown shows the text between back quotes unchanged."""
    for page in sorted(REFERENCE.glob("*.md")):
        assert not re.findall(r"`[^`\n]*&(?:lt|gt|amp);[^`\n]*`", page.read_text("utf-8")), page


CLIENT_VARIABLES = {
    "PENSTOCK_URL",
    USER_VARIABLE,
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    NEW_PASSWORD_VARIABLE,
    SOURCE_PASSWORD_VARIABLE,
}
"""What clients and commands read."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_error_class_named_exists(page: Path) -> None:
    named = {match_[1] for text in marked(page) if (match_ := _CLASS.fullmatch(text))}
    known_names = {error_class.__name__ for error_class in error_classes().values()} | NOT_OURS
    known_names |= set(penstock.__all__) | set(penstock.aio.__all__) | kit_classes()
    known_names |= set(penstock_faststream.__all__)

    assert named - known_names == set()


def kit_classes() -> set[str]:
    """Names of the classes for tests, which pages about tests name."""
    modules = (ROOT / "packages/testing/src").rglob("*.py")
    return {
        statement.name
        for module in modules
        for statement in parsed(module).body
        if isinstance(statement, ast.ClassDef)
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_named_exists(page: Path) -> None:
    named = {text for text in marked(page) if _OPTION.fullmatch(text)}
    setting_names = {path for path, *_ in described()} | channel_attributes()

    assert named - setting_names == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_named_exists(page: Path) -> None:
    named = set(_VARIABLE.findall(page.read_text(encoding="utf-8")))
    variables = {variable_of(path) for path, *_ in described()} | CLIENT_VARIABLES

    assert named - variables == set()


RULES_LINK = re.compile(r"\[SEM ([A-Z]\d*[a-z]?)\]\(([^)#]*)#([^)]*)\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_rule_named_is_a_link_to_it(page: Path) -> None:
    """``python -m tests.docs.reference`` makes ``(SEM D7)`` a link."""
    text = prose(page)
    links = list(RULES_LINK.finditer(text))

    assert list(cited_in(text)) == [link[1] for link in links], ADVICE
    for link in links:
        assert (page.parent / link[2]).resolve() == PAGE, link[0]
        assert link[3] == anchor_of(link[1]), link[0]


def test_every_page_of_the_guide_leads_to_the_rules_it_explains() -> None:
    led_from = {page.stem for page in GUIDE if "reference/semantics.md#" in prose(page)}

    assert led_from == {page.stem for page in GUIDE} - WITHOUT_RULES


def test_every_rule_has_a_link_from_the_guide() -> None:
    """On the page that explains it; a section's letter does not do for its rules."""
    links = [link for page in GUIDE for link in RULES_LINK.finditer(prose(page))]
    built = {
        rule.rule_id for rule in semantics.rules().values() if rule.status in ("built", "part")
    }

    assert built - {link[1] for link in links} == set()


def test_a_citation_becomes_a_link() -> None:
    assert linked("kept (SEM E2) and told (SEM D7, J2).", "../reference/semantics.md") == (
        "kept ([SEM E2](../reference/semantics.md#e2)) and told"
        " ([SEM D7](../reference/semantics.md#d7), [SEM J2](../reference/semantics.md#j2))."
    )
    assert linked("(SEM A)", "semantics.md") == "([SEM A](semantics.md#a-access))"
    assert linked("[SEM E2](x.md#e2)", "x.md") == "[SEM E2](x.md#e2)"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_settings_file_on_a_page_is_taken(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml" and not block.file:
            assert load(block.text) != load(), f"{name_of(page)}:{block.line}"


def test_every_channel_attribute_is_explained() -> None:
    page = (ROOT / "docs" / "guide" / "channels.md").read_text(encoding="utf-8")
    attributes = set(Definition.__struct_fields__) - {"storage"}

    assert [
        name for name in sorted(attributes | channel_attributes()) if f"| `{name}` |" not in page
    ] == []


def test_every_type_is_explained_and_deprecated_ones_say_so() -> None:
    channels = (ROOT / "docs" / "guide" / "channels.md").read_text(encoding="utf-8")
    durables = (ROOT / "docs" / "guide" / "durables.md").read_text(encoding="utf-8")
    heading = next(line for line in durables.splitlines() if line.startswith("| | exclusive"))
    marks = {True: " (deprecated)", False: ""}

    for type_ in rules().types.values():
        mark = re.escape(marks[type_.name in DEPRECATED_CHANNELS])
        assert re.search(rf"^\| `{type_.name}`{mark} ", channels, re.M)
    for kind in rules().kinds.values():
        mark = marks[kind.name in DEPRECATED_DURABLES]
        assert f"| {kind.name}{mark} " in heading.replace("(default) ", "")


def test_every_counter_and_what_an_origin_says_is_explained() -> None:
    page = (ROOT / "docs" / "guide" / "channels.md").read_text(encoding="utf-8")
    equation = next(line for line in page.splitlines() if line.startswith("published = "))
    terms = set(Counters.__struct_fields__) - {"redelivered"}
    _, _, rows = page.partition("| field of `origin` | is |")

    assert set(re.split(r" [=+] ", equation)) == terms | {"live"}
    assert [name for name in Origin.__struct_fields__ if f"`{name}`" not in rows] == []


def test_the_selectors_shown_as_wrong_are_refused_with_those_words() -> None:
    page = (ROOT / "docs" / "guide" / "selectors.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| you wrote | the message says |\n|---|---|\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]

    assert len(rows) >= 6
    for selector, words in rows:
        with pytest.raises(penstock.InvalidSelector) as refusal:
            parse(selector.strip("`"))
        assert words.partition("…")[0].rstrip(" ,") in str(refusal.value)


def test_every_line_of_the_log_is_explained() -> None:
    source = "\n".join(path.read_text() for path in ROOT.glob("packages/*/src/**/*.py"))
    logged = set(re.findall(r"_log\.(?:info|warning|error|exception)\(\s*\"([a-z_.]+)\"", source))
    page = OPERATING.read_text(encoding="utf-8")

    assert [event for event in sorted(logged) if f"`{event}`" not in page] == []
