"""What is published and acknowledged together: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
