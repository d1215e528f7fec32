"""A Spark session tuned for channels: `session()` and what it sets.

Spark's defaults are made for long jobs on many machines. Here micro-batches are small and
start-up counts, so the session takes sockets that do not stall, a checkpoint that does not fork,
and Python workers that start from compiled code. Everything can be overridden by ``conf``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.errors import Unavailable
from penstock_spark.session.cache import cache_directory, fingerprint, link_once
from penstock_spark.session.class_archive import ClassArchive
from penstock_spark.session.jvm import Jvm, find_jvm, java_home
from penstock_spark.session.pythons import python_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_SPAWN = "-Djdk.lang.Process.launchMechanism=VFORK"
"""Hadoop starts ``chmod`` for each file that it creates on a local disk if its native library is
missing, as it is in PySpark. Java's usual way of starting it needs another process."""
_SPAWN_UNTIL: Final = 25
"""The last Java known to have this way; one that has not would start no process at all."""

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the compiler that pays off after minutes and takes its time in the first seconds."""

_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Reading Arrow's memory value by value checks each time whether the buffer exists, the index is
inside it, and the value is not null: a sixth of the JVM's work in a read. Spark checks nulls
itself, and reads as many rows as a batch has."""

EVERYWHERE: Mapping[str, str] = {
    # Loopback TCP between the JVM and its Python workers stalls about 40 ms for each task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Stored in a checkpoint at its first run, so it has to be right from the start.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A driver that ends while it writes down the first micro-batch of a query leaves a temporary
    # file. Spark otherwise ignores such files, but this check would refuse the checkpoint for ever.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Set on every master."""

LOCAL: Mapping[str, str] = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    # The default of 15 s fails where the machine is busy. A data source that Spark has not found at
    # its first look for that reason stays unknown until the JVM ends.
    "spark.python.authenticate.socketTimeout": "120s",
    # Renames are atomic on a local file system; the default starts processes for each write.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Hadoop then writes no checksum files either, see `_without_checksum_files`.
    _CHECKSUMS: "false",
    "spark.ui.enabled": "false",
}
"""Set on local masters only; ``spark.sql.shuffle.partitions`` is then the number of cores."""


def session(
    app_name: str = "penstock",
    master: str | None = None,
    *,
    short: str | int | bool = False,  # `**conf` of a dictionary has the same types
    **conf: str | int | bool,
) -> SparkSession:
    """A Spark session for reading and writing channels; the running one when there is one.

    ``master`` defaults to ``local[*]``. ``conf`` wins over everything set here:
    ``session(**{"spark.driver.memory": "2g"})``.

    ``short`` is for jobs of seconds on a local master: the JVM compiles quickly instead of well,
    which starts it a quarter sooner and costs rate in whatever takes longer.

    Raises ``Unavailable`` when PySpark or a JVM is missing.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable('PySpark is not installed: pip install "penstock-realm[spark]"')
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    master = master or "local[*]"
    chosen = settings(master, conf)
    is_local = cores_of(master) is not None
    jvm, home = find_jvm(), spark_home()
    archive = ClassArchive(jvm, home)
    if SparkContext._gateway is None:
        threading.Thread(target=_load_ahead, name="penstock-load-ahead", daemon=True).start()
        if is_local:
            theirs = " ".join([*ways(jvm, is_short=bool(short)), chosen[_JAVA_OPTIONS]])
            chosen[_JAVA_OPTIONS] = " ".join([*archive.java_options(theirs), theirs])
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _launch_environment(java_home(jvm), home, is_local=is_local):
        started = builder.getOrCreate()
    if (gateway := SparkContext._gateway) is not None and gateway.proc is not None:
        archive.written_by(gateway.proc.pid)
    if is_local and chosen[_CHECKSUMS] == "false":
        _without_checksum_files(started)
    return started


def ways(jvm: Jvm, *, is_short: bool) -> list[str]:
    """Java options: how a JVM on this machine is to compile, to start processes, and to read."""
    can_spawn = sys.platform == "linux" and jvm.version <= _SPAWN_UNTIL
    return [*([_QUICK] if is_short else []), *([_SPAWN] if can_spawn else []), _ARROW]


def _without_checksum_files(spark: SparkSession) -> None:
    """Write no ``.crc`` files beside local files. A micro-batch writes two files to its checkpoint,
    and twice as many cost ten milliseconds. Existing ``.crc`` files are still verified, and removed
    with a new version."""
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None, "a session on this machine has one"
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration())
    files.setWriteChecksum(False)


def _load_ahead() -> None:
    """Import, while the JVM starts, the modules that PySpark loads for its first call of the JVM.

    To see whether NumPy is there, PySpark loads the module that its users write tests with, and so
    pandas, which takes half a second.
    """
    # A session without the setting still works, and the error would come again.
    with contextlib.suppress(Exception):
        importlib.import_module("pyspark.testing.utils")


def settings(master: str, conf: Mapping[str, str | int | bool]) -> dict[str, str]:
    """All settings for this master, overridden by ``conf``."""
    chosen = dict(EVERYWHERE)
    cores = cores_of(master)
    if cores is not None:
        chosen |= {**LOCAL, "spark.sql.shuffle.partitions": str(cores)}
    chosen |= {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in conf.items()
    }
    logging = f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"'
    # The user's options come last: of two contradicting ones Java takes the last.
    chosen[_JAVA_OPTIONS] = f"{logging} {chosen.get(_JAVA_OPTIONS, '')}".strip()
    return chosen


def cores_of(master: str) -> int | None:
    """Number of cores that a local master uses; None when the master is not local."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


@contextlib.contextmanager
def _launch_environment(jvm_home: Path, home: Path, *, is_local: bool) -> Iterator[None]:
    """Spark's launcher takes these from the environment; they are put back after the start."""
    defaults = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        # As Spark does for tasks: in a process for a stream or a plan NumPy would start threads
        # that wait for work and take 0.1 s of a core meanwhile.
        "OMP_NUM_THREADS": "1",
        **({"SPARK_LOCAL_IP": _LOOPBACK} if is_local else {}),
    }
    wanted = {name: os.environ.get(name, value) for name, value in defaults.items()}
    if is_local:
        # Its processes run here, where this Python has the package. Another one that the
        # environment names, as container images do, would not find the format.
        python = python_for_spark()
        wanted |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), python)
    wanted["JAVA_HOME"] = str(jvm_home)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                del os.environ[name]
            else:
                os.environ[name] = value_before


def spark_home() -> Path:
    """PySpark's own files without its zipped copy of itself.

    Workers import the zip where they see one, and it holds no compiled code: each new worker
    would spend half a second compiling what is installed next to it ready to use.
    """
    import pyspark

    if theirs := os.environ.get("SPARK_HOME"):
        return Path(theirs)
    package = Path(pyspark.__file__).parent
    if not (package / "jars").is_dir():
        return package
    name = f"spark-{pyspark.__version__}-{fingerprint(package)}"
    wanted = {entry.name: entry for entry in package.iterdir() if entry.name != "python"}
    return link_once(cache_directory() / name, wanted)


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the session of this thread, in which Spark looks for formats: a new thread has
    that of any other, which may be a query's own, and ``getOrCreate`` leaves a thread the one it
    has."""
    if (jvm := getattr(spark, "_jvm", None)) is not None:
        type(spark)._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
