"""The version of Penstock: of all its parts, which are released together."""

__version__ = "0.2.0"
"""Written here and nowhere else: ``pyproject.toml`` reads it, as hatchling does, by a pattern."""
