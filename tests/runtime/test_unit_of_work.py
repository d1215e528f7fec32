"""What is published and acknowledged together: all of it, or nothing."""

from __future__ import annotations



