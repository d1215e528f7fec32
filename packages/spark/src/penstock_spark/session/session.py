"""Starts a Spark session with settings that suit channels.

Spark's defaults suit long jobs on many machines. Here micro-batches are small and start-up time
matters, so the session uses sockets that do not stall, checkpoints that do not start processes, and
Python workers that start from compiled code. ``conf`` overrides every setting.
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
"""Makes Java start processes directly. Hadoop without its native library, as in PySpark, starts
``chmod`` for each file that it creates on a local disk, and by default Java starts two processes
for it."""
_SPAWN_UNTIL: Final = 25
"""The last Java release known to have ``VFORK``. A release without it could not start processes."""

_QUICK_COMPILER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Disables Java's optimizing compiler, which slows the first seconds and pays off after minutes,
and uses the simplest garbage collector."""

_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Disables Arrow's checks of each value that is read (buffer, bounds, null), a sixth of the JVM's
work in a read. They are not needed: Spark checks nulls itself, and reads only the rows of a
batch."""

EVERYWHERE: Mapping[str, str] = {
    # Loopback TCP between the JVM and its Python workers stalls about 40 ms for each task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A checkpoint stores the provider of its first run, so it must be right from the start.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A driver that is killed while it writes the first micro-batch of a query leaves a temporary
    # file. Spark ignores such files, but this check would refuse the checkpoint for ever.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings for every master."""

LOCAL: Mapping[str, str] = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    # The default of 15 s is too short on a busy machine. If Spark's first search for data sources
    # fails for that reason, they stay unknown until the JVM ends.
    "spark.python.authenticate.socketTimeout": "120s",
    # Renames are atomic on a local file system; the default starts processes for each write.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Also disables Hadoop's checksum files; see `_without_checksum_files`.
    _CHECKSUMS: "false",
    "spark.ui.enabled": "false",
}
"""Further settings for local masters. ``spark.sql.shuffle.partitions`` is set to the number of
cores, too."""


def session(
    app_name: str = "penstock",
    master: str | None = None,
    *,
    short: str | int | bool = False,  # `**conf` of a dictionary has the same types
    **conf: str | int | bool,
) -> SparkSession:
    """Start a Spark session for reading and writing channels, or return the running session.

    ``master`` defaults to ``local[*]``. ``conf`` overrides every setting:
    ``session(**{"spark.driver.memory": "2g"})``. ``short`` is for jobs that take only seconds on a
    local master: the JVM optimizes less, so the session starts about 25 % faster, but longer jobs
    run slower.

    Raises ``Unavailable`` if PySpark is not installed or no JVM is found.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable('PySpark is not installed: pip install "penstock-realm[spark]"')
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    master = master or "local[*]"
    all_settings = settings(master, conf)
    is_local = cores_of(master) is not None
    jvm, home = find_jvm(), spark_home()
    archive = ClassArchive(jvm, home)
    # Java options only take effect in a JVM that is not started yet.
    if SparkContext._gateway is None:
        threading.Thread(target=_import_ahead, name="penstock-load-ahead", daemon=True).start()
        if is_local:
            java_options = " ".join(
                [*java_options_for(jvm, is_short=bool(short)), all_settings[_JAVA_OPTIONS]]
            )
            all_settings[_JAVA_OPTIONS] = " ".join(
                [*archive.java_options(java_options), java_options]
            )
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in all_settings.items():
        builder = builder.config(key, value)
    with _launch_environment(java_home(jvm), home, is_local=is_local):
        started = builder.getOrCreate()
    if (gateway := SparkContext._gateway) is not None and gateway.proc is not None:
        archive.record_writer(gateway.proc.pid)
    if is_local and all_settings[_CHECKSUMS] == "false":
        _without_checksum_files(started)
    return started


def java_options_for(jvm: Jvm, *, is_short: bool) -> list[str]:
    """Return the Java options of a local session. ``is_short`` is for jobs that take seconds."""
    can_spawn = sys.platform == "linux" and jvm.version <= _SPAWN_UNTIL
    return [*([_QUICK_COMPILER] if is_short else []), *([_SPAWN] if can_spawn else []), _ARROW]


def _without_checksum_files(spark: SparkSession) -> None:
    """Make Hadoop write no ``.crc`` files on local disks.

    A micro-batch writes two files to its checkpoint; their ``.crc`` files would cost ten
    milliseconds. Existing ``.crc`` files are still verified; a new version of a file removes them.
    """
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None, "a session on this machine has a JVM"
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration())
    files.setWriteChecksum(False)


def _import_ahead() -> None:
    """Import the modules that PySpark loads for its first call of the JVM, while the JVM starts.

    PySpark checks for NumPy by loading its own testing module, which imports pandas and takes half
    a second.
    """
    # PySpark imports the module itself later, and then raises the same error.
    with contextlib.suppress(Exception):
        importlib.import_module("pyspark.testing.utils")


def settings(master: str, conf: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return the settings of a session with this master; ``conf`` overrides them."""
    merged_settings = dict(EVERYWHERE)
    cores = cores_of(master)
    if cores is not None:
        merged_settings |= {**LOCAL, "spark.sql.shuffle.partitions": str(cores)}
    merged_settings |= {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in conf.items()
    }
    logging = f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"'
    # The user's options follow, because Java uses the last of two contradicting options.
    merged_settings[_JAVA_OPTIONS] = f"{logging} {merged_settings.get(_JAVA_OPTIONS, '')}".strip()
    return merged_settings


def cores_of(master: str) -> int | None:
    """Return the number of cores that a local master uses; None if the master is not local."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


@contextlib.contextmanager
def _launch_environment(jvm_home: Path, home: Path, *, is_local: bool) -> Iterator[None]:
    """Set the environment variables that Spark's launcher reads while the ``with`` block runs."""
    defaults = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        # Spark sets this for tasks only. In its other Python processes NumPy would start threads,
        # whose waiting for work takes 0.1 s of a core.
        "OMP_NUM_THREADS": "1",
        **({"SPARK_LOCAL_IP": _LOOPBACK} if is_local else {}),
    }
    variables = {name: os.environ.get(name, value) for name, value in defaults.items()}
    if is_local:
        # A local master's processes run here, and this Python has the package. Another Python that
        # the environment names, as in container images, would not find the format.
        python = python_for_spark()
        variables |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), python)
    variables["JAVA_HOME"] = str(jvm_home)
    saved_variables = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value_before in saved_variables.items():
            if value_before is None:
                del os.environ[name]
            else:
                os.environ[name] = value_before


def spark_home() -> Path:
    """Return a folder of links to PySpark's files, without the zip file of PySpark's modules.

    Workers import from the zip file if it exists. It contains no compiled code, so each new worker
    would compile modules for half a second, although compiled code is installed.
    """
    import pyspark

    if user_home := os.environ.get("SPARK_HOME"):
        return Path(user_home)
    package = Path(pyspark.__file__).parent
    if not (package / "jars").is_dir():
        return package
    name = f"spark-{pyspark.__version__}-{fingerprint(package)}"
    links = {entry.name: entry for entry in package.iterdir() if entry.name != "python"}
    return link_once(cache_directory() / name, links)


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the active session of this thread. Spark searches it for formats.

    Otherwise a new thread has the active session of another thread, which may be that of a query;
    ``getOrCreate`` does not replace it.
    """
    if (jvm := getattr(spark, "_jvm", None)) is not None:
        type(spark)._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
