"""Cells of a CSV file that look like numbers and would change as numbers (SEM E11).

The patterns are for searches by Arrow and by Spark alike. A column with such a cell holds
identifiers, and is text.
"""

from __future__ import annotations

from typing import Final

NOT_PLAIN: Final = r"^(\+|-?0[0-9xX])"
"""A plus sign, a leading zero or hexadecimal digits."""
LONG: Final = r"^-?[0-9]{16,}$"
"""Whole numbers that a double may not represent exactly."""
