"""The check of Spark that ``penstock doctor --spark`` makes."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.checks.checks import Check, version_of


def spark() -> Iterator[Check]:
    """Check that a Spark session starts on this machine; takes some seconds."""
    if version_of("pyspark") is None:
        remedy = "pip install 'penstock-realm[spark]'"
        yield Check("spark", "failed", "PySpark is not installed", remedy=remedy)
        return
    from penstock_spark.session.jvm import find_jvm  # needs PySpark
    from penstock_spark.session.session import session

    try:
        jvm = find_jvm()
    except PenstockError as error:
        yield Check(
            "jvm", "failed", str(error), remedy="pip install 'penstock-realm[spark]' brings one"
        )
        return
    yield Check("jvm", "ok", f"Java {jvm.version}, {jvm.java} ({jvm.origin})")
    try:
        with session("penstock doctor", master="local[1]") as opened:
            count = opened.range(3).count()
    except Exception as error:  # noqa: BLE001 - any error of Spark is the finding
        first = (str(error).splitlines() or [type(error).__name__])[0]
        yield Check(
            "spark", "failed", first, remedy="run it with JAVA_HOME set to a JVM of 17 or newer"
        )
        return
    assert count == 3, f"Spark counted {count} rows instead of 3"
    yield Check("spark", "ok", f"a session of Spark {version_of('pyspark')} starts and counts")
