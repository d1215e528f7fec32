"""Names of other packages that programs import from ``penstock``.

``penstock-client`` alone is enough for a program that talks to a realm elsewhere. The server, the
Spark package and the test kit are separate packages. A name of such a package is imported at its
first use; if the package is not installed, the error contains the ``pip`` command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_INSTALLED_AS: Final = {
    "penstock_server": "penstock-realm",
    "penstock_spark": '"penstock-realm[spark]"',
}
"""Arguments of ``pip install`` by import name. Other packages are installed by the name of their
distribution."""


@contextmanager
def from_package(package: str) -> Iterator[None]:
    """If an import in the block does not find ``package``, raise a ``ModuleNotFoundError`` with the
    command that installs it. ``package`` is an import name.

    Errors about other missing modules are raised unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        distribution = package.replace("_", "-")
        raise ModuleNotFoundError(
            f"{distribution} is not installed: "
            f"pip install {_INSTALLED_AS.get(package, distribution)}",
            name=error.name,
        ) from None
