"""On a disk, shards are listed by the names of their files alone. The result is that of a listing of the store."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from lancelsm.common.layout import MEM_WAL, Position, RegionId, Version, published_manifest, wal_entry
from lancelsm.objects.filesystem import names_below
from lancelsm.region.catalog import TableContext
from lancelsm.region.shards import ShardListing, list_shards
from tests.unit.tables import create, row

SHARD = RegionId("0b0b0b0b-0000-4000-8000-000000000000")
NOISE = ("wal/x.arrow", "wal/01.arrow", "manifest/version_hint.json", "manifest/staged/9-x.binpb", "wal/deep/er.arrow")


def listed_by_store(context: TableContext) -> dict[RegionId, ShardListing]:
    return list_shards(replace(context, uri="s3://bucket/table"))


@pytest.mark.parametrize("seed", range(5))
def test_names_show_what_a_listing_of_the_store_shows(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(f"shards {seed}")
    table = create(tmp_path, regions="bucket(id, 3)")
    table.upsert([row(key) for key in range(9)])
    table.flush()
    table.upsert([row(1)])
    context = table._context
    shards = [region.id for region in table.list_regions()] + [SHARD]
    for _ in range(20):
        shard, number = chosen.choice(shards), chosen.randrange(1, 1 << 64)
        key = chosen.choice([wal_entry(shard, Position(number)), published_manifest(shard, Version(number))])
        context.objects.create(key, b"")
        context.objects.create(f"{MEM_WAL}/{shard}/{chosen.choice(NOISE)}", b"")
        context.objects.create(f"{MEM_WAL}/no id/wal/{Path(key).name}", b"")

    found = list_shards(context)
    assert found == {shard: one for shard, one in listed_by_store(context).items() if one.versions or one.positions}
    assert len(found) == 4


@pytest.mark.parametrize("link", [MEM_WAL, f"{MEM_WAL}/{SHARD}", f"{MEM_WAL}/{SHARD}/wal"])
def test_names_are_read_through_no_link(link: str, tmp_path: Path) -> None:
    real, table = tmp_path / "elsewhere" / link, tmp_path / "table"
    rest = Path(f"{MEM_WAL}/{SHARD}/wal").relative_to(link)
    (real / rest).mkdir(parents=True)
    (real / rest / "x.arrow").touch()
    assert list(names_below(tmp_path / "elsewhere", MEM_WAL, ["wal"])) == [(SHARD, "wal", "x.arrow")]
    (table / link).parent.mkdir(parents=True)
    (table / link).symlink_to(real)

    assert list(names_below(table, MEM_WAL, ["wal"])) == []


def test_names_of_no_directory_are_none(tmp_path: Path) -> None:
    (tmp_path / MEM_WAL).mkdir()
    (tmp_path / MEM_WAL / "file").touch()

    assert list(names_below(tmp_path, "absent", ["wal"])) == list(names_below(tmp_path, MEM_WAL, ["wal"])) == []
