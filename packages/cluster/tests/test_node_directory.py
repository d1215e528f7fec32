"""The data directory of a node: its name, and the realm it knows; no events."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from penstock_cluster.bootstrap.node_directory import NodeDirectory
from penstock_core.vocabulary.errors import Damaged, DataDirectoryInUse, InvalidArgument
from penstock_server.bootstrap.directories import opened
from penstock_server.storage.disk import RealDisk


def test_a_node_keeps_the_name_that_was_made_for_it(tmp_path: Path) -> None:
    root = str(tmp_path / "a" / "n1")
    with NodeDirectory(root, "penstock") as first:
        name = first.record.node

    with NodeDirectory(root, "penstock") as second:
        assert second.record.node == name
        assert name.startswith("n-")
    assert stat.S_IMODE((tmp_path / "a" / "n1" / "node.json").stat().st_mode) == 0o600


def test_the_settings_may_give_a_node_another_name(tmp_path: Path) -> None:
    with NodeDirectory(str(tmp_path), "penstock", "n1") as home:
        assert home.record.node == "n1"
    with NodeDirectory(str(tmp_path), "penstock", "n2") as home:
        assert home.record.node == "n2"

    with NodeDirectory(str(tmp_path), "penstock") as home:
        assert home.record.node == "n2"


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        NodeDirectory(str(tmp_path), "penstock"),
        pytest.raises(DataDirectoryInUse, match="give each node its own"),
    ):
        NodeDirectory(str(tmp_path), "penstock")


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with NodeDirectory(str(tmp_path), "one"):
        pass

    with pytest.raises(InvalidArgument, match=r"belongs to the cluster 'one', and cluster.name is"):
        NodeDirectory(str(tmp_path), "two")

    with NodeDirectory(str(tmp_path), "one"):
        pass  # it was given back


def test_a_directory_with_events_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    asyncio.run(opened(str(tmp_path), RealDisk()).journal.close())
    before = sorted(path.name for path in tmp_path.iterdir())

    with pytest.raises(InvalidArgument, match="has a realm"):
        NodeDirectory(str(tmp_path), "penstock")

    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_realm_on_its_own_refuses_the_directory_of_a_node(tmp_path: Path) -> None:
    with NodeDirectory(str(tmp_path), "penstock"):
        pass

    with pytest.raises(InvalidArgument, match=r"belongs to a node of a cluster.*--cluster URL"):
        opened(str(tmp_path), RealDisk())


def test_an_engine_that_has_lost_the_realm_is_noticed(tmp_path: Path) -> None:
    with NodeDirectory(str(tmp_path), "penstock") as home:
        home.check_realm("")
        home.check_realm("one")

    with NodeDirectory(str(tmp_path), "penstock") as home:
        home.check_realm("one")
        with pytest.raises(Damaged, match=r"no realm under the name 'penstock'.*was deleted or"):
            home.check_realm("")
        with pytest.raises(Damaged, match="the realm two"):
            home.check_realm("two")


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")

    with pytest.raises(Damaged, match=r"node\.json is damaged"):
        NodeDirectory(str(tmp_path), "penstock")
