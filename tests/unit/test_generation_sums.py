"""The manifest of a region has sums of each file of a generation. So scrub names a flipped bit in any of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lancelsm.common.layout import KEY_INDEX_FILES
from tests.unit.tables import create, generation_paths, row


@pytest.mark.parametrize("name", [*KEY_INDEX_FILES, "bloom_filter.bin"])
def test_scrub_names_a_key_index_or_bloom_filter_with_a_flipped_bit_or_that_is_gone(name: str, tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(key) for key in range(300)])
    table.flush()
    (generation,) = generation_paths(tmp_path)
    file, path = generation / name, str(generation.relative_to(tmp_path / "table") / name)
    body, draw = file.read_bytes(), random.Random(f"flips of {name}")
    for at in [0, len(body) - 1, *(draw.randrange(len(body)) for _ in range(8))]:
        damaged = bytearray(body)
        damaged[at] ^= 4
        file.write_bytes(damaged)
        assert [problem.path for problem in table.scrub().problems] == [path], at
    file.unlink()
    assert [problem.path for problem in table.scrub().problems] == [path]
    file.write_bytes(body)
    assert table.scrub().problems == ()
