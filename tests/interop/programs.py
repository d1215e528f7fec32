"""Runs client programs in other languages: fetches their libraries, compiles them, and reads the
outcome of each test.

Maven, npm, Go and Cargo fetch what the file of a suite names (``pom.xml``, ``package-lock.json``,
``go.sum``, ``Cargo.lock``), from the source in their own configuration. The result is kept below
``build/interop`` until that file changes. On a machine without the program, or without access to
the source, the suite is skipped with the reason."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import pytest
from msgspec import Struct

from tests.java import REFUSING

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parents[1] / "build" / "interop"
COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCHING_S: Final = 90
BUILDING_S: Final = 300
"""Time to build thirty crates on a busy machine; an idle one needs a tenth of it."""
RUNNING_S: Final = 240
"""The time after which a suite counts as hanging; all suites together take half of it."""

WITHOUT_PROTON: Final = "python-qpid-proton is not installed: `make setup` says why"

_RAN: Final = re.compile(r"^RAN (\d+) FAILED (\d+) IGNORED (\d+)$", re.MULTILINE)
_FAILED: Final = re.compile(r"^FAILED (\S+): (.*)$", re.MULTILINE)


class Outcome(Struct, frozen=True):
    """The outcome of a suite."""

    ran: int
    ignored: int
    failed: Mapping[str, str]
    """Reasons of failures, by test."""
    again: Sequence[tuple[str, str]] = ()
    """Failures, by test, that occurred while the owner moved, so that the tests were run again."""
    rounds: int = 1
    """Number of runs of the whole suite."""
    moves: int = 0
    """Number of moves of the owner during the runs."""

    def __str__(self) -> str:
        passed = self.ran - len(self.failed)
        lines = [f"{passed} of {self.ran} pass"]
        lines += [f"  {test}: {why}" for test, why in self.failed.items()]
        return "\n".join(lines)


Run = Callable[[Sequence[str]], Outcome]
"""Runs the tests with these names, or of these classes."""
Whole = Callable[[Run, Sequence[str]], Outcome]
"""Runs a suite until its outcome is final; see the fixture ``whole``."""


class InteropRealm(Protocol):
    """The addresses of the realm that a suite runs against."""

    @property
    def url(self) -> str:
        """Its URL for the native protocol."""
        ...

    @property
    def http_url(self) -> str:
        """Its URL for HTTP."""
        ...


Tell = Callable[[str, Outcome], None]
"""Adds the outcome of a suite to the report of the run; see the fixture ``tell``."""


def outcome(said: str) -> Outcome:
    """Parse the output of a suite. Raises ``AssertionError`` if the suite did not reach its end."""
    ends = _RAN.search(said)
    assert ends is not None, f"the suite has not come to its end:\n{said[-4_000:]}"
    failed = dict(_FAILED.findall(said))
    ran, count, ignored = map(int, ends.groups())
    assert len(failed) == count, f"{count} have failed, and these are named: {failed}"
    return Outcome(ran, ignored, failed)


def program(name: str, package: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian and Ubuntu: apt-get install {package})")
    return path


def run_java(
    suite: str,
    classes: Sequence[str],
    properties: Mapping[str, str],
    *,
    main: str = "Suite",
    running_s: int = RUNNING_S,
) -> Outcome:
    """Compile a folder of ``tests/interop`` with its libraries, and run JUnit classes of it."""
    assert os.environ.get("JAVA_HOME") != str(REFUSING), (
        "a test that runs Java uses the fixture java"
    )
    java = program("java", "openjdk-17-jdk-headless")
    program("javac", "openjdk-17-jdk-headless")
    path = os.pathsep.join((str(_compiled(suite)), str(_jars(suite) / "*")))
    arguments = [f"-D{name}={value}" for name, value in properties.items()]
    running_s *= patience_in(properties.get("realm.amqp", ""))
    command = [java, "-Xmx512m", *arguments, "-cp", path, f"penstock.interop.{main}", *classes]
    return _run(command, running_s)


def parse_java(files: Sequence[Path]) -> list[str]:
    """Return the compiler's complaints about the syntax of these files; this needs no libraries."""
    java = program("java", "openjdk-17-jdk-headless")
    program("javac", "openjdk-17-jdk-headless")
    command = [java, str(HERE / "java" / "Parse.java"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUNNING_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def compile_java(suite: str, texts: Mapping[str, str], folder: Path) -> Path:
    """Compile programs, by file name, with the libraries of a folder of ``tests/interop``; return
    the folder of the classes. A warning is an error."""
    program("javac", "openjdk-17-jdk-headless")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    classes = folder / "classes"
    command = ["javac", "-Xlint:all,-path", "-Werror", "-d", str(classes)]
    command += ["-cp", str(_jars(suite) / "*"), *(str(folder / name) for name in texts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUNNING_S, check=False)
    assert done.returncode == 0, done.stderr
    return classes


def run_program(suite: str, classes: Path, main: str) -> str:
    """Run a compiled program; return its output."""
    java = program("java", "openjdk-17-jdk-headless")
    path = os.pathsep.join((str(classes), str(_jars(suite) / "*")))
    done = subprocess.run(
        [java, "-Xmx256m", "-cp", path, main],
        capture_output=True,
        text=True,
        timeout=RUNNING_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def start_java(
    suite: str, main: str, *arguments: str, until: str, properties: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a program of the libraries of a suite while the body runs; gives the first group of
    ``until`` in what it writes."""
    java = program("java", "openjdk-17-jdk-headless")
    java_options = [f"-D{name}={value}" for name, value in (properties or {}).items()]
    command = [java, "-Xmx256m", *java_options, "-cp", str(_jars(suite) / "*"), main, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        try:
            lines = (re.search(until, line) for line in process.stdout)
            summary = next((match for match in lines if match is not None), None)
            assert summary is not None, f"{main} has ended with {process.wait()}"
            yield summary[1]
        finally:
            process.terminate()


def patience_in(jms: str) -> int:
    """Return the factor for the time of a suite with this URL: handovers of the owner delay it, and
    an engine of three servers is slower than a file."""
    return 4 if jms.startswith("failover:") else 1


def run_node(suite: str, script: str, *arguments: str) -> Outcome:
    """Run a script of a folder of ``tests/interop`` with the packages in its lock file."""
    node = program("node", "nodejs")
    return _run([node, str(_packages(suite) / script), *arguments])


def run_python(suite: str, script: str, *arguments: str) -> Outcome:
    """Run a script of a folder of ``tests/interop`` with the packages in its ``requirements.txt``,
    which are not in this environment."""
    wanted = HERE / suite / "requirements.txt"
    folder = _kept(suite, wanted)
    if not folder.exists():
        with _made(folder) as place:
            fetch = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
            _fetch(*fetch, "--require-hashes", "--target", place, "-r", wanted)
    command = ["env", f"PYTHONPATH={folder}", sys.executable, str(HERE / suite / script)]
    return _run([*command, *arguments])


def run_python_sources(
    suite: str, script: str, *arguments: str, running_s: int = RUNNING_S
) -> Outcome:
    """Run a script of a folder of ``tests/interop`` with the source distributions that its
    ``sources.txt`` names, at most ``running_s`` seconds. The script's first argument is the folder
    in which each is unpacked."""
    wanted = HERE / suite / "sources.txt"
    folder = _kept(f"{suite}-sources", wanted)
    if not folder.exists():
        with _made(folder) as place:
            fetch = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
            _fetch(*fetch, "--no-binary=:all:", "--require-hashes", "-d", place, "-r", wanted)
            for archive in [*place.iterdir()]:
                _unpack(archive, place / archive.name.partition("-")[0])
    command = [sys.executable, str(HERE / suite / script), str(folder), *arguments]
    return _run(command, running_s)


def _unpack(archive: Path, folder: Path) -> None:
    """Replace the archive of a source distribution by its tests and other files that are not part
    of the package: the installed package is tested."""
    package = folder.name
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            _, _, member.name = member.name.partition("/")
            if member.name and not member.name.startswith(f"{package}/"):
                files.extract(member, folder, filter="data")
    archive.unlink()


def run_go(suite: str, *arguments: str) -> Outcome:
    """Build and run the program in a folder of ``tests/interop`` with the modules in its
    ``go.sum``."""
    source = HERE / suite
    folder = _kept(suite, *sorted(source.iterdir()))
    if not folder.exists():
        go = program("go", "golang-go")
        with _made(folder) as place:
            _fetch(go, "list", "-deps", "-f", '{{""}}', ".", folder=source)  # it needs no modules
            _build(go, "build", "-o", place / "suite", ".", folder=source)
    return _run([str(folder / "suite"), *arguments])


def run_rust(suite: str, *arguments: str) -> Outcome:
    """Build and run the program in a folder of ``tests/interop`` with the crates in its
    ``Cargo.lock``."""
    source = HERE / suite
    folder = _kept(suite, *sorted(source.iterdir()))
    if not folder.exists():
        cargo = program("cargo", "cargo")
        with _made(folder) as place:
            _fetch(cargo, "fetch", "--locked", folder=source)
            made = place.parent / "target"  # removed at the end, except for the program
            _build(cargo, "build", "--quiet", "--frozen", "--target-dir", made, folder=source)
            shutil.copy(made / "debug" / "suite", place)
    return _run([str(folder / "suite"), *arguments])


def _run(command: Sequence[str], running_s: int = RUNNING_S) -> Outcome:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=running_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        raise AssertionError(f"not done within {running_s} s:\n{output[-4_000:]}") from late
    return outcome(f"{done.stdout}\n{done.stderr}" if done.returncode else done.stdout)


def _jars(suite: str) -> Path:
    pom = HERE / suite / "pom.xml"
    folder = _kept(f"{suite}-jars", pom)
    if not folder.exists():
        maven = program("mvn", "maven")
        with _made(folder) as place:
            _fetch(
                maven,
                "-B",
                "-q",
                "-Dstyle.color=never",
                "-f",
                str(pom),
                COPY,
                f"-DoutputDirectory={place}",
                "-DincludeScope=runtime",
            )
    return folder


def _packages(suite: str) -> Path:
    """Return a copy of the folder with its packages, because Node looks for them beside the
    script."""
    source = HERE / suite
    folder = _kept(suite, *sorted(source.iterdir()))
    if not folder.exists():
        npm = program("npm", "npm")
        with _made(folder) as place:
            shutil.copytree(source, place, dirs_exist_ok=True)
            _fetch(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", place)
    return folder


def _compiled(suite: str) -> Path:
    sources = sorted([*(HERE / "java").iterdir(), *(HERE / suite).iterdir()])
    folder = _kept(f"{suite}-classes", *sources)
    if not folder.exists():
        path = str(_jars(suite) / "*")
        programs = [str(path) for path in sources if path.suffix == ".java"]
        with _made(folder) as place:
            # Warnings about libraries named in the manifest of a library are ignored: no `path`.
            lints = ("-Xlint:all,-path", "-Werror")
            command = ["javac", *lints, "-d", str(place), "-cp", path, *programs]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            for source in sources:
                if source.suffix == ".properties":
                    shutil.copy(source, place)
    return folder


def _kept(name: str, *files: Path) -> Path:
    """Return a path for what is made from these files, which differs once they change."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return CACHE / f"{name}-{digest.hexdigest()[:12]}"


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which gets its final name when the block has completed it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{folder.name}-") as temporary:
        place = Path(temporary) / "whole"
        place.mkdir()
        yield place
        with suppress(OSError):  # another process has made it meanwhile
            place.rename(folder)


def _build(*command: str | Path, folder: Path) -> None:
    """Run a compiler. A program that cannot be compiled, or only with warnings, fails the test."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BUILDING_S,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "warning" not in output, output


def _fetch(*command: str | Path, folder: Path | None = None) -> None:
    """Run a program that fetches packages; skip the test if it cannot fetch them."""
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCHING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} could not fetch the suite within {FETCHING_S} s")
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        pytest.skip(f"{command[0]} cannot fetch the suite: {lines[0][:300]}")
