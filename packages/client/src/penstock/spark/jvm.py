"""``python -m penstock.spark.jvm`` prints the folder of the Java that was installed with Spark."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.session.jvm import find_jvm as find_jvm
    from penstock_spark.session.jvm import java_home as java_home

__all__ = ["find_jvm", "java_home"]

if __name__ == "__main__":
    print(java_home(find_jvm()))  # noqa: T201  a program
