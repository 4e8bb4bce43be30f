"""The manifest of a region has sums of each file of a generation. So scrub names a flipped bit in any of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lancelsm.common.layout import KEY_INDEX_FILES
from lancelsm.dataset.file_ranges import range_reader
from lancelsm.errors import Corrupt
from lancelsm.objects import filesum
from lancelsm.objects.filesum import sum_files
from lancelsm.objects.filesystem import LocalStore
from lancelsm.objects.local_copies import LocalCopies
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


def test_a_large_file_is_summed_in_pieces_which_are_never_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(key, f"{key}" * 40) for key in range(300)])
    (flushed,) = table.flush()
    store = LocalStore(Path(table.uri))
    whole = sum_files(store, flushed.path)
    monkeypatch.setattr(filesum, "WHOLE_BYTES", 100)
    monkeypatch.setattr(filesum, "_PIECE", 999)
    read, sizes = range_reader(table.uri), []

    def read_range(key: str, start: int, size: int) -> bytes:
        sizes.append(size)
        return read(key, start, size)

    with LocalCopies("memory://elsewhere") as copies:
        copy = copies.begin("copy")
        assert sum_files(store, flushed.path, copy=copy, read_range=read_range) == whole
        assert copy.location is not None
        (data,) = Path(copy.location).glob("data/*.lance")
        assert data.read_bytes() == next(Path(table.uri, flushed.path).glob("data/*.lance")).read_bytes()
    assert max(sizes) == 999
    assert sum(sizes) == sum(one.size for one in whole.files)
    with pytest.raises(Corrupt, match="a file can't be read"):
        read(f"{flushed.path}/data/gone.lance", 0, 9)
