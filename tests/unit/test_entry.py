"""The encoding of WAL entries: every type survives it, it equals Arrow's own, and damage is detected."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, PRIMARY_KEY
from lancelsm.wal.entry import decode, draft, encode, fence

NONCE = Nonce("0123456789abcdef" * 2)


def field(name, kind, number=0, *, nullable=True, **more):
    return pa.field(name, kind, nullable=nullable, metadata={FIELD_ID: str(number), **more})


def table(kind, values):
    columns = [pa.array(range(len(values)), pa.int64()), values, pa.array([False] * len(values))]
    key = field("id", pa.int64(), 0, nullable=False, **{PRIMARY_KEY.decode(): "true"})
    return pa.table(columns, schema=pa.schema([key, field("x", kind, 1), pa.field("_tombstone", pa.bool_(), False)]))


def entry_of(rows, *, position=7, epoch=3, applied_sequences=None):
    drafted = draft(rows, applied_sequences=applied_sequences)
    return encode(drafted, position=Position(position), epoch=Epoch(epoch), nonce=NONCE)


def read(body, *, position=7):
    return decode(body, position=Position(position), key="k")


def child(name, kind, number):
    return field(name, kind, number)


STRUCT = pa.struct([child("a", pa.int32(), 2), child("b", pa.list_(child("item", pa.string(), 4)), 3)])
COLUMNS = {
    "null": pa.nulls(3),
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "float16": pa.array([1.5, None, -0.0], pa.float16()),
    "decimal": pa.array([Decimal("1.10"), None, Decimal("-99.99")], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal(10) ** 50, None, Decimal(-1)], pa.decimal256(60, 0)),
    "timestamp": pa.array([0, None, 2**60], pa.timestamp("ns", tz="Europe/Berlin")),
    "duration": pa.array([1, None, -1], pa.duration("us")),
    "utf8": pa.array(["", None, "ä" * 40]),
    "utf8 view": pa.array(["", None, "a" * 40], pa.string_view()),
    "large binary": pa.array([b"", None, b"\x00\xff"], pa.large_binary()),
    "fixed binary": pa.array([b"abc", None, b"\x00" * 3], pa.binary(3)),
    "list": pa.array([[1, None], None, []], pa.list_(child("item", pa.int64(), 2))),
    "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(child("item", pa.float32(), 2), 2)),
    "struct": pa.array([{"a": 1, "b": ["x", None]}, None, {"a": None, "b": []}], STRUCT),
    "map": pa.array(
        [[("k", 1)], None, []], pa.map_(field("key", pa.string(), 3, nullable=False), child("value", pa.int64(), 4))
    ),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_survives_encoding(name):
    rows = table(COLUMNS[name].type, COLUMNS[name])

    entry = read(entry_of(rows).body)

    assert entry.table().equals(rows, check_metadata=True)
    assert entry.sound
    assert entry.row_setsum == row_setsum(rows)
    assert entry.summary.rows == 3


def test_chunks_with_different_dictionaries_survive_encoding():
    kind = pa.dictionary(pa.int8(), pa.string())
    chunks = [(0, ["a"]), (1, ["a", "b"]), (0, ["c"]), (None, ["d"])]
    arrays = [pa.DictionaryArray.from_arrays(pa.array([i], pa.int8()), pa.array(words)) for i, words in chunks]
    rows = pa.concat_tables([table(kind, array) for array in arrays])
    entry = read(entry_of(rows).body)
    assert entry.table().column("x").to_pylist() == ["a", "b", "c", None]
    assert (entry.sound, entry.summary.rows) == (True, 4)


@pytest.mark.parametrize("rows", [0, 1])
def test_two_thousand_columns_survive_encoding_with_and_without_rows(rows):
    schema = pa.schema([field(f"c{i}", pa.int32(), i) for i in range(2000)])
    wide = pa.table([pa.array([i] * rows, pa.int32()) for i in range(2000)], schema=schema)
    entry = read(entry_of(wide).body)
    assert entry.table().equals(wide, check_metadata=True)
    assert (entry.sound, entry.summary.rows) == (True, rows)


def test_a_row_of_ten_megabytes_is_decoded_without_a_copy():
    rows = table(pa.binary(), pa.array([b"\xab" * 10_000_000]))
    encoded = entry_of(rows)
    entry = read(encoded.body)
    copied = pa.total_allocated_bytes()
    assert entry.table().equals(rows, check_metadata=True)
    assert pa.total_allocated_bytes() - copied < 1_000_000
    assert encoded.summary.bytes == len(encoded.body) > 10_000_000


@pytest.mark.parametrize("name", COLUMNS)
def test_the_bytes_equal_those_of_arrows_own_writer(name):
    rows = table(COLUMNS[name].type, COLUMNS[name])
    body = entry_of(rows, applied_sequences={"q": "12"}).body
    schema = pa.ipc.open_stream(body).schema

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows.cast(schema))

    assert body == sink.getvalue().to_pybytes()


def test_the_schema_has_lances_metadata_and_the_last_field_has_ours():
    rows = table(pa.utf8(), pa.array(["a"]))
    body = entry_of(rows, applied_sequences={"queue": "000123"}).body
    schema = pa.ipc.open_stream(body).schema
    entry = read(body)
    assert schema.metadata == {b"writer_epoch": b"3"}
    assert schema.field("_tombstone").metadata == {
        b"lancelsm.nonce": NONCE.encode(),
        b"lancelsm.entry_setsum": entry.summary.entry_setsum.hex().encode(),
        b"lancelsm.row_setsum": row_setsum(rows).hex().encode(),
        b"lancelsm.queue": b"queue",
        b"lancelsm.sequence": b"000123",
    }
    assert schema.field("id").metadata == {b"lance:field_id": b"0", b"lance-schema:unenforced-primary-key": b"true"}
    assert (entry.nonce, entry.summary.applied_sequences, entry.summary.epoch) == (NONCE, {"queue": "000123"}, 3)


def test_a_fence_has_neither_fields_nor_batches():
    drafted = encode(fence(), position=Position(4), epoch=Epoch(9), nonce=NONCE)
    reader = pa.ipc.open_stream(drafted.body)
    assert (len(reader.schema), list(reader)) == (0, [])
    assert reader.schema.metadata[b"fence_sentinel"] == b"true"
    entry = read(drafted.body, position=4)
    assert (entry.fence, entry.sound, entry.summary.rows, entry.row_setsum) == (True, True, 0, Setsum())


def test_the_sum_covers_position_epoch_schema_and_payload():
    rows = table(pa.utf8(), pa.array(["a"]))
    seconds, milliseconds = (table(pa.timestamp(unit), pa.array([1], pa.timestamp(unit))) for unit in ("s", "ms"))
    assert row_setsum(seconds) == row_setsum(milliseconds)
    assert entry_of(seconds).summary.entry_setsum != entry_of(milliseconds).summary.entry_setsum
    sums = {
        entry_of(each, position=position, epoch=epoch).summary.entry_setsum
        for each, position, epoch in [(rows, 7, 3), (rows, 7, 3), (rows, 8, 3), (rows, 7, 4), (rows.slice(1), 7, 3)]
    }
    assert len(sums) == 4
    assert not read(entry_of(rows).body, position=8).sound


def test_an_entry_without_our_metadata_is_read_but_not_sound():
    schema = pa.schema([pa.field("a", pa.int64())], metadata={"writer_epoch": "5", "generation": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([[1, 2]], schema=schema))
    entry = read(sink.getvalue().to_pybytes())
    assert (entry.summary.epoch, entry.summary.rows) == (5, 2)
    assert (entry.nonce, entry.sound, entry.row_setsum, entry.fence) == (None, False, None, False)


def test_an_entry_truncated_anywhere_is_corrupt_or_unsound():
    body = entry_of(table(pa.utf8(), pa.array(["a", "bc"]))).body
    for end in range(len(body)):
        assert_not_sound(body[:end], end)


def assert_not_sound(body, where_damaged):
    try:
        assert not read(body).sound, where_damaged
    except Corrupt as error:
        where = error.where
    else:
        return
    assert where == {"position": 7, "object": "k"}


def test_any_flipped_bit_is_corrupt_or_unsound():
    intact = entry_of(table(pa.utf8(), pa.array(["a", "bc"])), applied_sequences={"q": "1"}).body
    for bit in range(len(intact) * 8):
        body = bytearray(intact)
        body[bit // 8] ^= 1 << bit % 8
        assert_not_sound(bytes(body), bit)


@pytest.mark.parametrize("epoch", [b"-3", b"x", b"18446744073709551616", b""])
def test_an_invalid_epoch_is_corrupt(epoch):
    schema = pa.schema([], metadata={b"writer_epoch": epoch})
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    with pytest.raises(Corrupt, match="not a WAL entry"):
        read(sink.getvalue().to_pybytes())


def test_random_bytes_are_corrupt():
    chance = random.Random(1)
    head = bytes(entry_of(table(pa.utf8(), pa.array(["a"]))).body[:8])
    for _ in range(500):
        noise = chance.randbytes(chance.randrange(400))
        for body in (noise, head + noise):
            with pytest.raises(Corrupt):
                read(body)
