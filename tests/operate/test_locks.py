"""The lock files fit together, and the one that needs a compiler is no part of the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from scripts.packages import WHOLE as WHOLE_NAME
from scripts.packages import extras_of, requirements_of_part

ROOT = Path(__file__).parents[2]
ENGINE = "python-qpid-proton"


def locked(name: str) -> dict[str, str]:
    """Versions by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_what_has_to_be_compiled_is_locked_apart() -> None:
    assert ENGINE not in locked("requirements.lock")
    assert ENGINE in locked("requirements-amqp.lock")


def test_the_amqp_engine_moves_no_version_of_the_large_lock() -> None:
    """It is installed after it, and whoever cannot build it has the same of everything else."""
    large = locked("requirements.lock")
    needed = locked("requirements-amqp.lock")
    del needed[ENGINE]

    assert needed
    assert needed == {name: large.get(name) for name in needed}


def test_the_image_has_what_its_packages_and_tokens_need_in_the_versions_that_are_tested() -> None:
    large, image = locked("requirements.lock"), locked("requirements-image.lock")
    parts = ("", "cluster", "ldap", "otel", "protobuf", "tokens")
    direct = [requirement for part in parts for requirement in declared()[part]]

    assert {requirement.name for requirement in direct} <= image.keys()
    assert image == {name: large.get(name) for name in image}
    assert not image.keys() & {"pyspark", "pytest", ENGINE}


def declared() -> dict[str, list[Requirement]]:
    """Return the requirements that users install: those of the base, and those of each extra."""
    parts = {"": "base", **{extra: extra for extra in extras_of(WHOLE_NAME)}, "dev": "group:dev"}
    return {name: list(requirements_of_part(part)) for name, part in parts.items()}


WHOLE = [
    requirement
    for part in ("", "cluster", "ldap", "protobuf", "tokens")
    for requirement in declared()[part]
]
"""Packages that `make lowest` installs completely."""


@pytest.mark.parametrize("wanted", WHOLE, ids=lambda requirement: requirement.name)
def test_the_lowest_version_of_each_range_is_tried(wanted: Requirement) -> None:
    (lower_bound,) = [bound for bound in wanted.specifier if bound.operator == ">="]

    assert Version(locked("requirements-lowest.lock")[wanted.name]) == Version(lower_bound.version)


def test_what_is_tried_of_other_extras_is_in_its_lowest_version_too() -> None:
    lowest = locked("requirements-lowest.lock")
    others = [requirement for part in ("spark", "demo", "dev") for requirement in declared()[part]]
    tried = {
        requirement.name: (lowest[requirement.name], bound.version)
        for requirement in others
        for bound in requirement.specifier
        if bound.operator == ">=" and requirement.name in lowest
    }

    assert tried.keys() == {"deltalake", "pandas", "duckdb", "hypothesis", "pytest", "pytest-xdist"}
    for name, (version, bound) in tried.items():
        # The first version of a line may be a patch, as in 3.6.1
        assert Version(version).release[:2] == Version(bound).release[:2], name


def test_the_newest_version_of_each_range_is_what_the_other_tests_run_with() -> None:
    newest = {**locked("requirements.lock"), **locked("requirements-amqp.lock")}

    for part, requirements in declared().items():
        for requirement in requirements:
            assert requirement.specifier.contains(newest[requirement.name]), (
                part,
                str(requirement),
            )


def test_every_range_of_what_users_install_has_both_ends() -> None:
    for part, requirements in declared().items():
        for requirement in requirements:
            if part != "dev":
                operators = {bound.operator for bound in requirement.specifier}
                assert operators in ({">=", "<"}, {"=="}), (part, str(requirement))


def test_a_change_lands_only_with_the_lowest_versions() -> None:
    steps = (ROOT / ".ci" / "run").read_text().splitlines()

    assert [step for step in steps if step.startswith("make ")] == [
        "make -j 2 --output-sync check lowest TESTS=later",
        "make test",
    ]


def test_all_fast_tests_of_make_check_are_in_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (fast,) = re.findall(r'^fast := -m "(.*?)"', makefile, re.MULTILINE)
    (first, *_) = re.findall(r'run -n \d -m "(.*?)"', makefile)

    assert set(first.split(" and ")) < set(fast.split(" and "))
    assert re.findall("^.*--hypothesis-profile.*$", makefile, re.MULTILINE) == re.findall(
        "^fast := .*$", makefile, re.MULTILINE
    )


@pytest.mark.parametrize(
    "lock",
    [
        "requirements-airflow.lock",
        "requirements-amqp.lock",
        "requirements-build.lock",
        "requirements-image.lock",
        "requirements-lowest.lock",
        "requirements-uv.lock",
    ],
)
def test_every_locked_package_has_its_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text()

    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block
