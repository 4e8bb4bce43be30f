"""What has format 1, in which sums were SHA3-256, is refused by name: running totals can't mix two algorithms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import lancelsm
from lancelsm.admin.backup import BACKUP
from lancelsm.common.layout import CONFIG, RegionId
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Invalid
from lancelsm.gc import lists
from lancelsm.gc.lists import Round
from lancelsm.generated.lancelsm.v1 import manifest_pb2, round_pb2
from lancelsm.region import head as heads
from lancelsm.region import manifest_codec
from lancelsm.stack.delivery.quarantine import read_dead_letter
from tests.simulation.deployment import Deployment
from tests.unit.tables import create, row

OLD = r"has format 1, whose sums are SHA3-256; the sums of this release are xxh3"


def set_format(path: Path, number: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))


def test_a_table_with_old_sums_is_refused_and_the_error_says_how_to_keep_its_rows(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    set_format(Path(table.uri, CONFIG), 1)

    with pytest.raises(Invalid, match=f"the table {OLD}") as raised:
        lancelsm.open(table.uri)

    assert raised.value.where == {"table": table.uri}
    assert "load them into a new table" in raised.value.remedy


def test_a_base_with_old_sums_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    base = open_base(uri=table.uri)
    assert base.facts is not None
    write_facts(base, replace(base.facts, format=1).metadata())

    with pytest.raises(Invalid, match=f"the table {OLD}"):
        lancelsm.open(table.uri)


def test_a_head_and_a_manifest_with_old_sums_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.list_regions()
    head = region.head()
    body = (Path(table.uri) / head.manifest_key).read_bytes()
    message = manifest_pb2.Manifest.FromString(body)
    message.format, message.entry_setsum = 1, bytes(32)

    with pytest.raises(Invalid, match=f"the head {OLD}"):
        heads.from_record(heads.to_record(head) | {"format": 1, "entry_setsum": "00" * 32})
    with pytest.raises(Invalid, match=f"the manifest {OLD}") as raised:
        manifest_codec.decode(message.SerializeToString(), key="k")
    assert raised.value.where == {"object": "k"}


def test_the_list_of_a_round_with_old_sums_is_refused() -> None:
    found = Round(region=RegionId("d00cc65e-1b58-41a4-a929-5096334c8657"), number=1, floor=1, items=(), marked=1.0)
    message = round_pb2.Round.FromString(lists.encode(found))
    message.format, message.discarded = 1, bytes(32)

    with pytest.raises(Invalid, match=f"the list {OLD}"):
        lists.decode(message.SerializeToString(), key="k")


def test_a_backup_with_old_sums_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    lancelsm.backup(table, tmp_path / "backup")
    set_format(tmp_path / "backup" / BACKUP, 1)

    with pytest.raises(Invalid, match=f"the backup {OLD}") as raised:
        lancelsm.restore(tmp_path / "backup", tmp_path / "restored")

    assert "Restore it with the release that wrote it" in raised.value.remedy


def test_a_dead_letter_with_an_old_sum_is_refused() -> None:
    deployment = Deployment(buckets=1)
    deployment.put((7, None), like=7)
    deployment.deliver()
    (body,) = deployment.dead_letters.bodies
    assert read_dead_letter(body).position == 1

    with pytest.raises(Invalid, match=f"the dead letter {OLD}") as raised:
        read_dead_letter(json.dumps(json.loads(body) | {"format": 1, "entry_setsum": "00" * 32}))

    assert raised.value.remedy == "Write its rows again, or delete it"
