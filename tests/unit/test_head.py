"""The head of a region: its record, and the pure functions that compute swaps."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lancelsm.common.layout import Epoch, Generation, Key, Nonce, Position, Version
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region import head as heads
from lancelsm.region.head import Head, LogTotals, RegionState, Summary
from lancelsm.region.producers import Producer, producer_id
from lancelsm.region.since import Since
from lancelsm.registry import NEVER_DECREASE, apply_swap

NONCE = Nonce("ab" * 16)
HEAD = Head(
    epoch=Epoch(4),
    owner="default",
    status=RegionState.OPEN,
    next_position=Position(10),
    entry_setsum=Setsum.of([b"x"]),
    wal_rows=100,
    wal_bytes=1000,
    producers={producer_id("q"): Producer(9, 1)},
    nonce=Nonce("01" * 16),
    first_position=Position(3),
    manifest_version=Version(6),
    manifest_key="_mem_wal/r/manifest/staged/6-x.binpb",
    manifest_epoch=Epoch(4),
    current_generation=Generation(5),
    collector_round=2,
    manifest_nonce=Nonce("02" * 16),
    merged=Generation(3),
    dirty="90",
    stopped="another tool changed the base: column 'state' is called 'status' now",
    waiting="250",
    compacted="1-2 4-4",
    log_since="8 80",
    merge_since="4 70",
    ordered="1",
    schema_version=7,
    format=heads.FORMAT,
)
NOW = 123.4


def summary(position, *, epoch=4, rows=7, applied_sequences=None):
    return Summary(
        position=Position(position),
        epoch=Epoch(epoch),
        rows=rows,
        bytes=70,
        entry_setsum=Setsum.of([str(position).encode()]),
        applied_sequences=applied_sequences or {},
        at=NOW,
    )


def applied(swap, head=HEAD):
    """The head after the swap, which must succeed."""
    record = apply_swap(Key(partition="p", sort="s"), heads.to_record(head), expect=swap.expect, change=swap.change)
    assert record is not None
    return heads.from_record(record)


def test_a_head_is_decoded_from_its_record_which_is_small_and_flat():
    record = heads.to_record(HEAD)
    assert heads.from_record(record) == HEAD
    names = {"source" if field.name == "producers" else field.name for field in fields(Head)}
    assert set(record) == names
    assert all(type(value) in (str, int, bytes) for value in record.values())
    assert sum(len(name) + len(str(value)) for name, value in record.items()) < 1024


@pytest.mark.parametrize(
    ("compacted", "merged", "pending"),
    [
        ("", 3, 17),
        ("4-9", 3, 12),
        ("4-9 10-19", 3, 3),
        ("4-9", 6, 12),
        ("4-9", 9, 11),
        ("4-99", 3, 0),
        ("nonsense", 3, 17),
    ],
)
def test_a_compacted_generation_counts_once_as_pending(compacted, merged, pending):
    head = replace(HEAD, current_generation=Generation(21), merged=Generation(merged), compacted=compacted)
    assert heads.from_record(heads.to_record(head)).pending_generations == pending


def test_a_head_of_a_newer_format_is_invalid():
    with pytest.raises(Invalid, match=r"format 5, this release reads up to 4.*newer lancelsm"):
        heads.from_record({**heads.to_record(HEAD), "format": 5})


@pytest.mark.parametrize(
    "change",
    [
        {"owner": None},
        {"merged": None},
        {"format": None},
        {"status": "ajar"},
        {"entry_setsum": "00"},
        {"manifest_key": 7},
        {"source": "{"},
        {"source": "[]"},
        {"source": '{"queue": 7}'},
        {"source": b"too short"},
        {"epoch": "4"},
        {"epoch": -1},
        {"manifest_version": True},
        {"next_position": 0},
        {"next_position": 2**63},
        {"format": 0},
        {"format": "2"},
    ],
    ids=str,
)
def test_an_unreadable_record_is_corrupt(change):
    record = {name: value for name, value in {**heads.to_record(HEAD), **change}.items() if value is not None}
    with pytest.raises(Corrupt):
        heads.from_record(record)


def test_unknown_fields_of_a_record_are_ignored():
    assert heads.from_record({**heads.to_record(HEAD), "of a newer release": 1}) == HEAD


def test_an_append_is_conditional_on_epoch_and_position_and_changes_only_the_log_half():
    swap = heads.appended(HEAD, [summary(10), summary(11, rows=3)], nonce=NONCE, at=NOW)

    assert swap.expect == {"epoch": 4, "next_position": 10}
    assert applied(swap) == replace(
        HEAD,
        next_position=Position(12),
        entry_setsum=Setsum.of([b"x", b"10", b"11"]),
        wal_rows=110,
        wal_bytes=1140,
        nonce=NONCE,
    )


@pytest.mark.parametrize(
    "entries",
    [[summary(9)], [summary(11)], [summary(10), summary(12)], [summary(10, epoch=3)], [summary(11), summary(10)]],
)
def test_only_entries_that_follow_in_this_epoch_are_appended(entries):
    with pytest.raises(ValueError, match="do not follow"):
        heads.appended(HEAD, entries, nonce=NONCE, at=NOW)


def test_the_applied_sequence_of_a_queue_is_the_highest_one():
    entries = [
        summary(10, applied_sequences={"q": "10"}),
        summary(11, applied_sequences={"q": "8"}),
        summary(12, applied_sequences={"other": "0001"}),
    ]
    assert applied(heads.appended(HEAD, entries, nonce=NONCE, at=NOW)).producers == {
        producer_id("q"): Producer(10, 1),
        producer_id("other"): Producer(1, 1),
    }


def test_a_head_is_dirty_since_the_first_unmerged_append():
    clean = replace(HEAD, dirty="")
    append = heads.appended(clean, [summary(10)], nonce=NONCE, at=NOW)

    dirty = applied(append, clean)

    assert dirty.dirty == "123"
    assert applied(heads.appended(dirty, [summary(11)], nonce=NONCE, at=200.0), dirty).dirty == "123"


def test_the_log_waits_since_the_first_row_that_is_in_no_generation():
    empty = replace(HEAD, log_since="10 90")
    fenced = applied(heads.appended(empty, [summary(10, rows=0)], nonce=NONCE, at=100.0), empty)
    first = applied(heads.appended(fenced, [summary(11), summary(12)], nonce=NONCE, at=NOW), fenced)
    later = applied(heads.appended(first, [summary(13)], nonce=NONCE, at=200.0), first)

    assert [one.log_since for one in (fenced, first, later)] == ["11 100", "11 123", "11 123"]
    for unknown in ("", "of a newer release"):
        head = replace(HEAD, log_since=unknown)
        assert applied(heads.appended(head, [summary(10)], nonce=NONCE, at=NOW), head).log_since == "10 123"


def flushed(head, generation, *, first, at):
    """The head after a flush: entries from `first` on are in no generation, and the one before is of this time."""
    swap = heads.manifest_swapped(
        head,
        version=Version(head.manifest_version + 1),
        key="k",
        epoch=head.epoch,
        first_position=head.first_position,
        current_generation=Generation(generation + 1),
        collector_round=head.collector_round,
        nonce=NONCE,
        flushed=Since(first=first, at=at),
    )
    return applied(swap, head)


def test_rows_wait_for_a_merge_since_the_oldest_one_that_is_not_merged():
    merged = replace(HEAD, merged=Generation(4))
    one = flushed(merged, 5, first=9, at=85)
    two = flushed(one, 6, first=10, at=89)
    after_one = applied(heads.merged(two, Generation(5), began=one), two)
    after_two = applied(heads.merged(two, Generation(6), began=two), two)

    assert [(x.log_since, x.merge_since) for x in (one, two)] == [("9 85", "5 80"), ("10 89", "5 80")]
    assert (after_one.merge_since, after_two.merge_since) == ("6 85", "7 89")
    assert applied(heads.merged(two, Generation(5)), two).merge_since == "5 80", "the merge left generations out"
    assert flushed(replace(merged, log_since=""), 5, first=9, at=85).merge_since == "5 85"


def test_a_clean_head_has_no_dirty_field_in_its_record():
    assert "dirty" not in heads.to_record(replace(HEAD, dirty=""))
    assert applied(heads.cleaned(HEAD, HEAD.merged)).dirty == ""


def test_the_note_of_a_waiting_writer_disturbs_no_append_and_is_removed_by_one():
    clean = replace(HEAD, waiting="")
    noted = applied(heads.noted(clean, milliseconds=40), clean)

    assert (clean.waiting_milliseconds, noted.waiting_milliseconds) == (0, 40)
    assert "waiting" not in heads.to_record(clean)
    later = applied(heads.appended(clean, [summary(10)], nonce=NONCE, at=NOW), noted)
    assert later.waiting == "40"
    assert applied(heads.appended(later, [summary(11)], nonce=NONCE, at=NOW, removes_note=True), later) == replace(
        applied(heads.appended(later, [summary(11)], nonce=NONCE, at=NOW), later), waiting=""
    )


def test_a_concurrent_append_makes_a_cleaned_head_dirty_again():
    append = heads.appended(HEAD, [summary(10)], nonce=NONCE, at=NOW)
    assert applied(append, applied(heads.cleaned(HEAD, HEAD.merged))).dirty == "90"


def test_a_head_is_not_cleaned_after_another_append_or_manifest_commit():
    appended = applied(heads.appended(HEAD, [summary(10)], nonce=NONCE, at=NOW))
    key, swap = Key(partition="p", sort="s"), heads.cleaned(HEAD, HEAD.merged)
    for newer in (appended, replace(HEAD, manifest_version=Version(7))):
        assert apply_swap(key, heads.to_record(newer), expect=swap.expect, change=swap.change) is None


def test_a_claim_is_conditional_on_epoch_and_status_only():
    swap = heads.claimed(HEAD, owner="b", nonce=NONCE)
    assert swap.expect == {"epoch": 4, "status": "open"}
    assert applied(swap) == replace(HEAD, epoch=Epoch(5), owner="b", nonce=NONCE)


def test_a_sealed_head_has_no_owner_and_cannot_be_claimed_or_sealed():
    sealed = applied(heads.sealed(HEAD, nonce=NONCE))
    assert sealed == replace(HEAD, epoch=Epoch(5), owner="", status=RegionState.SEALED, nonce=NONCE)
    for swap in (heads.claimed(sealed, owner="b", nonce=NONCE), heads.sealed(sealed, nonce=NONCE)):
        with pytest.raises(AssertionError):
            applied(swap, sealed)


def test_a_manifest_swap_is_conditional_on_the_version_and_changes_only_the_manifest_half():
    swap = heads.manifest_swapped(
        HEAD,
        version=Version(7),
        key="k",
        epoch=Epoch(4),
        first_position=Position(8),
        current_generation=Generation(6),
        collector_round=3,
        nonce=NONCE,
    )
    assert swap.expect == {"manifest_version": 6}
    assert applied(swap) == replace(
        HEAD,
        manifest_version=Version(7),
        manifest_key="k",
        first_position=Position(8),
        current_generation=Generation(6),
        collector_round=3,
        manifest_nonce=NONCE,
        compacted="",
    )


def test_an_append_and_a_manifest_swap_do_not_conflict():
    manifest = heads.manifest_swapped(
        HEAD,
        version=Version(7),
        key="k",
        epoch=Epoch(4),
        first_position=Position(3),
        current_generation=Generation(5),
        collector_round=2,
        nonce=NONCE,
    )
    append = heads.appended(HEAD, [summary(10)], nonce=NONCE, at=NOW)
    assert applied(manifest, applied(append)) == applied(append, applied(manifest))


def test_the_merged_generation_of_a_head_only_rises():
    assert heads.merged(HEAD, Generation(3)) is None
    assert heads.merged(HEAD, Generation(2)) is None
    after = applied(heads.merged(HEAD, Generation(4)))
    assert (after.merged, HEAD.pending_generations, after.pending_generations) == (4, 1, 0)


@pytest.mark.parametrize("field", NEVER_DECREASE)
def test_a_field_that_never_decreases_cannot_decrease_even_in_an_unconditional_swap(field):
    record = heads.to_record(HEAD)
    key = Key(partition="p", sort="s")
    with pytest.raises(Corrupt, match=f"{field} would decrease") as raised:
        apply_swap(key, record, expect={}, change={field: record[field] - 1})
    assert raised.value.where == {"record": "p/s", "field": field}
    with pytest.raises(Corrupt):
        apply_swap(key, record, expect={}, change={field: None})
    assert apply_swap(key, record, expect={}, change={field: record[field]}) == record


def test_a_head_is_created_only_if_it_does_not_exist():
    swap = heads.created(HEAD)
    key = Key(partition="p", sort="s")
    assert heads.from_record(apply_swap(key, None, expect=swap.expect, change=swap.change)) == HEAD
    assert apply_swap(key, heads.to_record(HEAD), expect=swap.expect, change=swap.change) is None


def test_totals_of_a_log_add_up_entry_by_entry():
    entries = [summary(1, epoch=1, applied_sequences={"q": "2"}), summary(2, epoch=3, applied_sequences={"q": "1"})]
    assert LogTotals().after(entries) == LogTotals(
        entry_setsum=Setsum.of([b"1", b"2"]),
        wal_rows=14,
        wal_bytes=140,
        producers={producer_id("q"): Producer(2, 1)},
        epoch=Epoch(3),
    )
    assert LogTotals().after(entries) == LogTotals().after(entries[:1]).after(entries[1:])
