"""``penstock apply`` and ``penstock export``: a realm as a file, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from tests.commands import commands_of

if TYPE_CHECKING:
    from tests.commands import Run

SHOP = """
[[channel]]
name = "orders"
type = "persistent"
ttl = "1h"

  [[channel.durable]]
  name = "billing"

[[queue]]
name = "work"

[[join]]
source = "orders"
destination = "work"
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SHOP)
    return path


def test_a_file_is_shown_then_applied_and_the_second_time_there_is_nothing_to_do(
    penstock_command: Run, session: Session, shop: Path
) -> None:
    first = penstock_command("apply", str(shop))

    assert first.exit_code == 0
    assert first.stdout.splitlines() == [
        "+ channel orders",
        "    type 'persistent'",
        "    ttl '1h'",
        "+ queue work",
        "+ durable billing of orders",
        "    type 'shared'",
        "+ join orders -> work",
        "4 to create",
    ]
    assert first.stderr.splitlines() == [
        "created channel orders",
        "created queue work",
        "created durable billing of orders",
        "created join orders -> work",
    ]
    assert session.channels.get("orders").durables.list()[0].name == "billing"

    second = penstock_command("apply", str(shop))
    assert (second.exit_code, second.output) == (0, "nothing to change\n")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--check", "--dry-run"])
def test_a_check_changes_nothing_and_its_status_says_whether_something_differs(
    penstock_command: Run, session: Session, shop: Path, flag: str
) -> None:
    assert penstock_command("apply", str(shop), flag).exit_code == 3
    assert session.channels.list() == []

    penstock_command("apply", str(shop))

    assert penstock_command("apply", str(shop), flag).exit_code == 0
    session.channels.create("more")
    assert penstock_command("apply", str(shop), flag).exit_code == 0
    pruning = penstock_command("apply", str(shop), flag, "--prune")
    assert pruning.exit_code == 3
    assert "- channel more\n    loses 0 events\n1 to delete\n" in pruning.stdout


def test_what_the_file_does_not_name_is_told_and_deleted_only_when_that_is_agreed_to(
    penstock_command: Run, session: Session, shop: Path, orders: Channel
) -> None:
    shop.write_text("[[queue]]\nname = 'work'\n")

    applied = penstock_command("apply", str(shop))
    assert "not in the file, unchanged (--prune deletes them): channel orders\n" in applied.stdout
    assert applied.exit_code == 0

    unanswered = penstock_command("apply", str(shop), "--prune")
    assert unanswered.exit_code == 2
    assert "loses 5 events" in unanswered.stdout
    assert "pass --yes" in unanswered.stderr
    assert session.channels.list() == ["orders"]

    agreed = penstock_command("apply", str(shop), "--prune", "--yes")
    assert (agreed.exit_code, agreed.stderr) == (0, "deleted channel orders\n")
    assert session.channels.list() == []


def test_a_change_that_removes_events_is_asked_for(
    penstock_command: Run, orders: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("[[channel]]\nname = 'orders'\ntype = 'persistent'\ncapacity = 2\n")

    assert penstock_command("apply", str(file)).exit_code == 2
    assert orders.info().events == 5
    assert penstock_command("apply", str(file), "--yes").exit_code == 0
    assert orders.info().events == 2


def test_what_cannot_be_changed_in_place_is_told_and_nothing_is_changed(
    penstock_command: Run, session: Session, orders: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("[[channel]]\nname='orders'\ntype='reliable'\n[[channel]]\nname='more'\n")

    refused = penstock_command("apply", str(file), "--yes")

    assert refused.exit_code == 1
    assert refused.stdout.splitlines() == [
        "! channel orders cannot be changed in place",
        "    type 'persistent' -> 'reliable'",
        "    deleting and creating it again would lose 5 events",
        "    to accept that loss: penstock channel delete orders, then apply again",
        "+ channel more",
        "nothing is changed, because some differences cannot be resolved in place",
    ]
    assert session.channels.list() == ["orders"]


def test_a_plan_is_also_a_document(penstock_command: Run, shop: Path) -> None:
    plan = json.loads(penstock_command("apply", str(shop), "--check", "--format", "json").stdout)

    assert plan["steps"][0] == {
        "verb": "create",
        "what": "channel orders",
        "changes": ["type 'persistent'", "ttl '1h'"],
        "loses": "",
    }
    assert (plan["immovable"], plan["unnamed"], plan["kept"]) == ([], [], [])


def test_a_bad_file_is_refused_with_its_line(penstock_command: Run, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("[[channel]]\nname = 'a'\ncapicity = 5\n")

    refused = penstock_command("apply", str(file))

    assert refused.exit_code == 1
    assert f"{file}:3: channel a: capicity is not a key here; did you mean capacity?" in (
        refused.stderr
    )


@pytest.mark.slow
def test_what_is_there_is_exported_and_applied_elsewhere(
    penstock_command: Run, shop: Path, tmp_path: Path
) -> None:
    penstock_command("apply", str(shop))
    copy = tmp_path / "copy.toml"

    written = penstock_command("export", "--topology", str(copy))
    assert written.exit_code == 0
    assert f"{copy} written: 1 channel, 1 queue" in written.stderr
    assert penstock_command("apply", str(copy), "--check", "--prune").exit_code == 0
    assert penstock_command("export", "--topology").stdout == copy.read_text()

    with penstock.Realm() as other_realm:
        penstock_there = commands_of(other_realm)
        assert penstock_there("apply", str(copy)).exit_code == 0
        assert penstock_there("export", "--topology").stdout == copy.read_text()


def test_a_file_that_is_there_is_replaced_only_when_that_is_agreed_to(
    penstock_command: Run, shop: Path
) -> None:
    refused = penstock_command("export", "--topology", str(shop))
    assert refused.exit_code == 2
    assert shop.read_text() == SHOP

    assert penstock_command("export", "--topology", str(shop), "--yes").exit_code == 0
    assert shop.read_text().startswith("# The configuration of realm ")


def test_export_wants_to_know_what(penstock_command: Run) -> None:
    refused = penstock_command("export")

    assert refused.exit_code == 2
    assert "--topology" in refused.stderr


PIPELINE = """
name = "shop"
[[source]]
name = "orders"
channel = "orders"
durable = "spark"
[[step]]
name = "dear"
sql = "SELECT price FROM orders WHERE price > 2"
channel = "dear"
"""


@pytest.mark.parametrize(
    ("pipeline", "more", "says"),
    [
        (PIPELINE, "", "needs durable spark of orders; add a [[channel.durable]]"),
        (PIPELINE.replace('"spark"', '"billing"'), "", "needs channel dear; add a [[channel]]"),
        (PIPELINE.replace('"spark"', '"billing"'), "[[channel]]\nname = 'dear'\n", ""),
        (PIPELINE.replace("sql", "sqll"), "", "did you mean sql?"),
    ],
)
def test_pipelines_find_what_they_need(
    penstock_command: Run, shop: Path, pipeline: str, more: str, says: str
) -> None:
    (shop.parent / "flow.toml").write_text(pipeline)
    shop.write_text(f"{SHOP}{more}[[pipeline]]\nfile = 'flow.toml'\n")

    checked = penstock_command("apply", str(shop), "--check")

    if says:
        assert checked.exit_code == 1
        assert says in checked.stderr
        line = shop.read_text().splitlines().index("file = 'flow.toml'") + 1
        assert f"{shop}:{line}: pipeline" in checked.stderr
    else:
        assert checked.exit_code == 3
