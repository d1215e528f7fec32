"""Arrow's compute functions, loaded with the first that is used.

``pyarrow.compute`` builds a Python function for each kernel when it is imported, a tenth of what a
process loads that only connects, publishes or plans. Import this one instead, as ``pc``.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    found = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = found  # the next use finds it without asking here
    return found
