"""The version of Penstock. All packages are released together with this version."""

__version__ = "0.2.0"
"""The version is defined only here; ``pyproject.toml`` reads it with a pattern."""
