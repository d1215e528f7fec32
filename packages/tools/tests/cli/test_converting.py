"""``penstock topology from-rabbitmq`` and ``from-um``: a file that exists is not lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.commands import Run

EXPORTS = Path(__file__).parents[1] / "migration"


@pytest.mark.parametrize(
    ("command", "export"), [("from-rabbitmq", "definitions.json"), ("from-um", "realm.xml")]
)
def test_an_existing_file_is_replaced_only_after_a_confirmation(
    penstock_command: Run, tmp_path: Path, command: str, export: str
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("# an older topology")

    refused = penstock_command("topology", command, str(EXPORTS / export), str(file))

    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert file.read_text() == "# an older topology"

    replaced = penstock_command("topology", command, str(EXPORTS / export), str(file), "--yes")

    assert replaced.exit_code == 0
    assert file.read_text().startswith("# Converted from ")
