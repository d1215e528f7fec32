"""Tables of the formats whose rows a step can replace."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.client.tests.catalogs import configured
from packages.spark.tests.pipelines.places import Places


@pytest.fixture(params=["delta", "iceberg"])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Places:
    if request.param == "iceberg":
        return Places(tmp_path, configured(tmp_path, monkeypatch))
    return Places(tmp_path)
