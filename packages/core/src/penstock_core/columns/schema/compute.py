"""Arrow's compute functions, loaded on first use.

``pyarrow.compute`` builds a Python function for each kernel on import, which takes a tenth of the
start-up time of a process that only connects, publishes or plans. Import this module instead, as
``pc``.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    function = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = function  # later lookups skip __getattr__
    return function
