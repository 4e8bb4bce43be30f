"""Object keys and names: encode them, and decode only strings that have their exact form."""

from __future__ import annotations

import uuid

import pytest

from lancelsm.common import layout
from lancelsm.common.layout import Generation, Key, Nonce, Position, RegionId, TableId, Version

REGION = RegionId("0f3ac1f0-7b1e-4c5d-9a55-3a1d2c4b5e6f")
TABLE = TableId("11111111-1111-4111-8111-111111111111")


@pytest.mark.parametrize(
    ("number", "digits"),
    [(0, "0" * 64), (1, "1" + "0" * 63), (5, "101" + "0" * 61), (2**63, "0" * 63 + "1"), (2**64 - 1, "1" * 64)],
)
def test_bitrev64_is_64_digits_least_significant_first(number, digits):
    assert layout.bitrev64(number) == digits
    assert layout.unbitrev64(digits) == number


@pytest.mark.parametrize("number", [-1, 2**64])
def test_bitrev64_refuses_numbers_that_do_not_fit_64_bits(number):
    with pytest.raises(ValueError, match="64 bits"):
        layout.bitrev64(number)


@pytest.mark.parametrize("digits", ["", "1" * 63, "1" * 65, "2" + "0" * 63, " " + "0" * 63, "+" + "0" * 63])
def test_unbitrev64_refuses_anything_but_64_binary_digits(digits):
    with pytest.raises(ValueError, match="64 binary digits"):
        layout.unbitrev64(digits)


def test_keys_are_where_lance_expects_them():
    base = f"_mem_wal/{REGION}"
    assert layout.wal_entry(REGION, Position(1)) == f"{base}/wal/1{'0' * 63}.arrow"
    assert layout.published_manifest(REGION, Version(2)) == f"{base}/manifest/01{'0' * 62}.binpb"
    assert layout.version_hint(REGION) == f"{base}/manifest/version_hint.json"
    assert layout.staged_manifest(REGION, Version(2), Nonce("ab" * 16)) == f"{base}/manifest/staged/2-{'ab' * 16}.binpb"
    name = layout.generation_name(Generation(12), Nonce("0123456789abcdef" * 2))
    assert name == "01234567_gen_12"
    assert layout.generation_path(REGION, name) == f"{base}/01234567_gen_12"


def test_position_zero_is_refused():
    with pytest.raises(ValueError, match="start at 1"):
        layout.wal_entry(REGION, Position(0))


@pytest.mark.parametrize("position", [1, 2, 4096, 2**64 - 1])
def test_a_position_is_decoded_from_its_key(position):
    assert layout.wal_position(layout.wal_entry(REGION, Position(position))) == position


@pytest.mark.parametrize(
    "name", ["", "1.arrow", f"{'0' * 64}.lance", f"{'0' * 64}", f"{'0' * 64}.arrow.tmp", f"{'2' * 64}.arrow"]
)
def test_other_keys_have_no_position(name):
    assert layout.wal_position(layout.wal_prefix(REGION) + name) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0123abcd_gen_1", 1),
        ("0123abcd_gen_20", 20),
        ("0123ABCD_gen_1", None),
        ("0123abcd_gen_0", None),
        ("0123abcd_gen_01", None),
        ("0123abc_gen_1", None),
        ("0123abcd_gen_", None),
        ("0123abcd_gen_1/", None),
        ("wal", None),
    ],
)
def test_only_a_generation_directory_has_a_generation_number(name, number):
    assert layout.generation_number(name) == number


def region_of(*values, table=TABLE, spec_id=1):
    return layout.region_id(table=table, spec_id=spec_id, values=values)


def test_a_region_id_is_a_uuid_of_version_4_and_the_same_for_every_creator():
    created = region_of(("bucket", b"\x03\x00\x00\x00"))
    assert created == "d00cc65e-1b58-41a4-a929-5096334c8657"
    assert (uuid.UUID(created).version, uuid.UUID(created).variant) == (4, uuid.RFC_4122)


def test_different_regions_have_different_ids():
    ids = {
        region_of(),
        region_of(("a", None)),
        region_of(("a", b"")),
        region_of(("a", b"\x00")),
        region_of(("a", b""), ("b", b"")),
        region_of(("b", b""), ("a", b"")),
        region_of(("ab", b"c")),
        region_of(("a", b"bc")),
        region_of(("a", b""), spec_id=2),
        region_of(("a", b""), table=TableId("22222222-2222-4222-8222-222222222222")),
    }
    assert len(ids) == 10


def test_registry_records_that_are_listed_together_share_a_partition():
    assert layout.head_key(TABLE, REGION) == Key(partition=f"H#{TABLE}#{REGION}", sort="head")
    assert layout.region_key(TABLE, REGION) == Key(partition=f"T#{TABLE}", sort=REGION)
    assert layout.table_key(TABLE) == Key(partition="T", sort=TABLE)
    assert layout.lease_key(TABLE, "merge") == Key(partition=f"L#{TABLE}", sort="merge")
