"""The version of Penstock: of all its parts, which are released together."""

from typing import Final

__version__: Final = "0.1.0"
"""Written here and nowhere else: ``pyproject.toml`` reads it."""
