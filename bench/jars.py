"""Peers that are Java archives: Maven fetches them once into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.shape import Missing

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>{name}</artifactId>
<version>1</version><dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>
<version>{2}</version></dependency>"""
WANTED = {
    "kafka": ("org.apache.kafka:kafka_2.13:4.1.0",),
    "artemis": (
        "org.apache.activemq:artemis-server:2.42.0",
        "org.apache.activemq:artemis-amqp-protocol:2.42.0",
    ),
    "qpid-jms": ("org.apache.qpid:qpid-jms-client:2.8.0", "org.slf4j:slf4j-nop:2.0.16"),
}
"""The archives of each peer without their dependencies: group, artifact, version."""


def version_of(name: str) -> str:
    """Return the version of a peer."""
    return WANTED[name][0].rpartition(":")[2]


def folder_of(name: str) -> Path:
    """Return the folder of the archives of a peer, whether or not it exists."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "penstock-bench" / f"{name}-{version_of(name)}"


def missing(name: str) -> str:
    """Return why a peer cannot run; empty if it can."""
    if shutil.which("java") is None:
        return "it needs Java 17: apt-get install openjdk-17-jre-headless"
    if not any(folder_of(name).glob("*.jar")):
        return f"its archives are not here: python -m bench install {name} (needs Maven)"
    return ""


def class_path(name: str) -> str:
    """Return the class path of a peer, for Java."""
    return str(folder_of(name) / "*")


def install(name: str) -> Path:
    """Fetch the archives from the repository that Maven is configured for, and return their folder.
    Raises ``Missing`` without Maven, ``CalledProcessError`` if Maven fails."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("mvn is not installed: apt-get install maven")
    wanted = "".join(DEPENDENCY.format(*line.split(":")) for line in WANTED[name])
    folder = folder_of(name)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(POM.format(name=name, dependencies=wanted))
        fetched = Path(directory) / "jars"
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        subprocess.run(
            [*command, f"-DoutputDirectory={fetched}", "-DincludeScope=runtime"], check=True
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(fetched, folder)
    return folder
