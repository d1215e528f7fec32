"""What all tests share is in `tests/plugin.py`; here it is loaded for tests of every folder."""

from __future__ import annotations

pytest_plugins = ["pytester", "tests.java", "tests.scheduling", "tests.plugin"]
