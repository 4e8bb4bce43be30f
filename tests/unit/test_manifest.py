"""The manifest: its transitions, its invariants, and its encoding."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lancelsm.common.layout import Epoch, Generation, Nonce, Position, RegionId, Version, round_list
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.generated.lance import table_pb2 as lance
from lancelsm.generated.lancelsm.v1 import manifest_pb2 as pb
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec
from lancelsm.region.head import LogTotals
from lancelsm.region.manifest import FlushedGeneration, FlushedRange, Manifest, Superseded
from lancelsm.region.manifest_invariants import violations
from lancelsm.region.producers import Producer, producer_id

REGION = RegionId("d00cc65e-1b58-41a4-a929-5096334c8657")
FIRST = Manifest(region=REGION, spec_id=1, values=(("bucket", b"\3\0\0\0"),), version=Version(1), epoch=Epoch(1))


def sums(first, last):
    return Setsum.of([str(position).encode() for position in range(first, last + 1)])


def generation(number, first, last):
    folded = FlushedRange(
        first=Position(first), last=Position(last), entry_setsum=sums(first, last), row_setsum=Setsum.of([b"r"])
    )
    return FlushedGeneration(
        generation=Generation(number), path=f"00000000_gen_{number}", rows=10, bytes=100, folded=folded
    )


def totals(through):
    return LogTotals(
        entry_setsum=sums(1, through),
        wal_rows=through,
        wal_bytes=10 * through,
        producers={producer_id("q"): Producer(through, 1)},
        epoch=1,
    )


def flush(manifest, last):
    built = generation(manifest.current_generation, manifest.replay_after + 1, last)
    flushed = manifests.flushed(manifest, after=manifest.replay_after, built=built, at_end=totals(last))
    return replace(flushed, version=Version(manifest.version + 1))


SECOND = flush(FIRST, 4)
THIRD = flush(SECOND, 9)


def test_sums_of_files_survive_encoding_whether_present_or_absent():
    (known,) = SECOND.generations
    made = {"file_setsum": Setsum.of([b"f"]), "bloom_setsum": Setsum.of([b"b"])}
    made |= {"key_index_setsums": (Setsum.of([b"d"]), Setsum.ZERO)}
    summed = replace(known, folded=replace(known.folded, **made))

    for manifest in (SECOND, replace(SECOND, generations=(summed,))):
        assert manifest_codec.decode(manifest_codec.encode(manifest), key="manifest") == manifest


def test_a_flush_moves_the_replay_point_to_its_last_entry():
    expected = replace(
        FIRST,
        version=Version(2),
        replay_after=Position(4),
        last_seen=Position(4),
        current_generation=Generation(2),
        generations=(generation(1, 1, 4),),
        entry_setsum=sums(1, 4),
        wal_rows=4,
        wal_bytes=40,
        producers={producer_id("q"): Producer(4, 1)},
        replay_epoch=Epoch(1),
    )
    assert expected == SECOND
    assert (THIRD.newest, FIRST.newest) == (2, 0)
    assert [violations(None, FIRST), violations(FIRST, SECOND), violations(SECOND, THIRD)] == [[], [], []]


def test_a_flush_that_is_already_committed_changes_nothing():
    again = manifests.flushed(THIRD, after=Position(0), built=generation(1, 1, 4), at_end=totals(4))
    assert again == THIRD


@pytest.mark.parametrize(("number", "after"), [(1, 0), (2, 0), (1, 4), (3, 4)])
def test_a_flush_is_superseded_once_its_number_or_its_range_is_taken(number, after):
    built = replace(generation(number, after + 1, 9), path="another_gen_1")
    dead = manifests.flushed(SECOND, after=Position(after), built=built, at_end=totals(9))
    assert isinstance(dead, Superseded)
    assert f"planned generation {number} after position {after}" in dead.why


def test_an_epoch_is_written_once_and_never_decreases():
    claimed = manifests.with_epoch(SECOND, epoch=Epoch(3), last_seen=Position(12))
    assert claimed == replace(SECOND, epoch=Epoch(3), last_seen=Position(12))
    assert manifests.with_epoch(claimed, epoch=Epoch(2), last_seen=Position(99)) is claimed
    assert manifests.with_epoch(SECOND, epoch=Epoch(2), last_seen=Position(1)).last_seen == 4


def test_a_seal_is_permanent():
    sealed = manifests.with_seal(SECOND, epoch=Epoch(2), last_seen=Position(1))
    assert sealed == replace(SECOND, sealed=True, epoch=Epoch(2))
    assert manifests.with_seal(sealed, epoch=Epoch(2), last_seen=Position(99)) is sealed
    assert manifests.with_seal(sealed, epoch=Epoch(3), last_seen=Position(99)).last_seen == sealed.last_seen
    assert "a sealed region is opened again" in violations(sealed, replace(sealed, sealed=False, version=Version(3)))


def after(old, **changes):
    return violations(old, replace(old, version=Version(old.version + 1), **changes))


COLLECTED = {
    "generations": (generation(2, 5, 9),),
    "collected_entries": sums(1, 4),
    "first_position": Position(5),
}


def test_the_oldest_generations_may_be_collected_and_their_sums_remain():
    assert after(THIRD, **COLLECTED) == []
    emptied = {"generations": (), "collected_entries": sums(1, 9), "first_position": Position(10)}
    assert after(THIRD, **emptied) == []


def collect(manifest, *, number=1, key="gc/1", first_position=5, paths=("00000000_gen_1",), compactions=0):
    return manifests.collected(
        manifest,
        round_number=number,
        key=key,
        list_setsum=Setsum.of([b"list"]),
        first_position=Position(first_position),
        paths=frozenset(paths),
        compactions=compactions,
        at=7.5,
    )


def test_a_collection_round_removes_generations_and_keeps_their_sums():
    after = replace(collect(THIRD), version=Version(4))

    assert [g.generation for g in after.generations] == [2]
    assert (after.collected_entries, after.collector_round, after.collector_key) == (sums(1, 4), 1, "gc/1")
    assert after.first_position == 5
    assert violations(THIRD, after) == []


def test_a_collection_round_that_is_already_committed_changes_nothing():
    after = collect(THIRD)
    assert collect(after) == after


def test_a_collection_round_is_superseded_after_another_round_was_committed():
    after = collect(THIRD)
    assert isinstance(collect(after, key="gc/another"), Superseded)
    assert isinstance(collect(THIRD, paths=("00000000_gen_1", "00000000_gen_7")), Superseded)


def test_a_collection_round_never_lowers_the_floor():
    after = collect(THIRD)
    assert collect(after, number=2, key="gc/2", first_position=1, paths=()).first_position == 5


def compact(manifest, *, parts, first, path="cccccccc_gen_2", collector_round=0, index_number=0):
    chosen = [g for g in manifest.generations if g.path in parts]
    built = replace(
        generation(2, chosen[0].folded.first, chosen[-1].folded.last), path=path, first_number=Generation(first)
    )
    return manifests.compacted(
        manifest, parts=parts, built=built, collector_round=collector_round, index_number=index_number
    )


PARTS = ("00000000_gen_1", "00000000_gen_2")
COMPACTED = replace(compact(THIRD, parts=PARTS, first=1), version=Version(4))


def test_a_compaction_replaces_neighbours_by_a_generation_of_all_their_numbers_and_entries():
    (made,) = COMPACTED.generations
    assert (made.numbers, made.folded.first, made.folded.last) == (range(1, 3), 1, 9)
    assert (COMPACTED.compactions, COMPACTED.current_generation, COMPACTED.replay_after) == (1, 3, 9)
    assert violations(THIRD, COMPACTED) == []
    assert manifest_codec.decode(manifest_codec.encode(COMPACTED), key="k") == COMPACTED
    assert [pb.Manifest.FromString(manifest_codec.encode(one)).format for one in (THIRD, COMPACTED)] == [2, 4]
    assert violations(COMPACTED, flush(COMPACTED, 12)) == []
    later = collect(COMPACTED, paths=("cccccccc_gen_2",), compactions=1, first_position=10)
    assert violations(COMPACTED, replace(later, version=Version(5))) == []


def test_a_compaction_is_superseded_by_another_one_of_its_parts_and_by_a_collection_round():
    made = COMPACTED.generations[0]
    assert manifests.compacted(COMPACTED, parts=PARTS, built=made, collector_round=0) is COMPACTED
    rival = manifests.compacted(COMPACTED, parts=PARTS, built=replace(made, path="dddddddd_gen_2"), collector_round=0)
    assert isinstance(rival, Superseded)
    assert "generations 1 to 2 are not all listed" in rival.why
    collected = replace(collect(THIRD, paths=(), first_position=1), version=Version(4))
    late = compact(collected, parts=PARTS, first=1)
    assert isinstance(late, Superseded)
    assert "planned after collection round 0, but the manifest is after round 1" in late.why


def test_a_collection_round_is_superseded_by_a_compaction_after_its_mark():
    late = collect(COMPACTED, paths=("cccccccc_gen_2",))
    assert isinstance(late, Superseded)
    assert "after 0 compactions, but the manifest is after round 0 and 1 compactions" in late.why


def test_a_compaction_without_the_newest_indexes_is_not_committed():
    required = manifests.requiring_indexes(THIRD, 7)
    with pytest.raises(manifests.IndexesChanged, match="built for list 6, but the manifest requires list 7") as raised:
        compact(required, parts=PARTS, first=1, index_number=6)
    assert raised.value.required == 7
    assert compact(required, parts=PARTS, first=1, index_number=8).index_number == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"first_number": Generation(2)},
        {"first_number": None},
        {"folded": replace(COMPACTED.generations[0].folded, first=Position(2))},
        {"folded": replace(COMPACTED.generations[0].folded, last=Position(8))},
        {"folded": replace(COMPACTED.generations[0].folded, entry_setsum=sums(1, 8))},
    ],
)
def test_a_compaction_with_other_numbers_or_entries_than_its_parts_breaks_an_invariant(changes):
    wrong = replace(COMPACTED, generations=(replace(COMPACTED.generations[0], **changes),))
    assert violations(THIRD, wrong)


def test_only_neighbours_become_one_generation():
    four = flush(THIRD, 12)
    ends = [four.generations[0], four.generations[2]]
    built = replace(generation(3, 1, 12), path="cccccccc_gen_3", first_number=Generation(1))
    skipping = manifests.compacted(four, parts=[g.path for g in ends], built=built, collector_round=0)
    assert violations(four, replace(skipping, version=Version(5))) == []  # its range is that of all three
    left_out = replace(built, folded=replace(built.folded, entry_setsum=sums(1, 4) + sums(10, 12)))
    skipping = manifests.compacted(four, parts=[g.path for g in ends], built=left_out, collector_round=0)
    assert "generation 2 was changed or is missing" in violations(four, replace(skipping, version=Version(5)))


def test_the_head_has_the_spans_of_the_newest_compacted_generations_above_what_is_merged():
    many = [replace(generation(3 * n, 1, 2), first_number=Generation(3 * n - 2)) for n in range(1, 41)] + [
        generation(121, 3, 4)
    ]
    manifest = replace(FIRST, generations=tuple(many), current_generation=Generation(122))
    assert manifests.live_numbers(manifest, above=114) == "115-117 118-120"
    assert manifests.live_numbers(manifest, above=116) == "115-117 118-120"
    assert manifests.live_numbers(manifest, above=120) == ""
    assert manifests.live_numbers(manifest, above=0).split()[0] == "73-75"


@pytest.mark.parametrize(
    ("spans", "above", "missing"),
    [
        ([range(1, 4), range(4, 6)], 0, []),
        ([range(1, 4), range(4, 6)], 2, []),
        ([range(3, 6)], 1, [2]),
        ([range(1, 3), range(4, 5)], 0, [3, 5]),
        ([], 5, []),
        ([], 3, [4, 5]),
        ([range(7, 9)], 4, [5]),
    ],
)
def test_numbers_above_the_counter_that_no_generation_has_are_missing(spans, above, missing):
    assert manifests.missing_numbers(spans, above=above, newest=5) == missing


@pytest.mark.parametrize(
    ("changes", "message_part"),
    [
        ({"version": Version(5)}, "version 5 does not follow 3"),
        ({"region": RegionId("00000000-0000-4000-8000-000000000000")}, "another region"),
        ({"spec_id": 2}, "another region"),
        ({"values": ()}, "another region"),
        ({"epoch": Epoch(0)}, "epoch decreases from 1 to 0"),
        ({"replay_epoch": Epoch(0)}, "replay_epoch decreases"),
        ({"replay_after": Position(8)}, "replay_after decreases from 9 to 8"),
        ({"replay_after": Position(10)}, "ends at 9, but the replay point is 10"),
        ({"current_generation": Generation(2)}, "current_generation decreases"),
        ({"current_generation": Generation(4)}, "not contiguous up to 3"),
        ({"wal_rows": 1}, "wal_rows decreases"),
        ({"wal_bytes": 1}, "wal_bytes decreases"),
        ({"collector_round": -1}, "collector_round decreases"),
        ({"first_position": Position(0)}, "first_position decreases"),
        ({"first_position": Position(11)}, "the floor 11 is above the replay point 9"),
        ({"entry_setsum": sums(1, 8)}, "do not add up"),
        ({"collected_entries": sums(1, 1)}, "do not add up"),
        ({"generations": (generation(2, 5, 9),)}, "do not add up"),
        ({"generations": (generation(1, 1, 4),)}, "generations [1] are not contiguous up to 2"),
        ({"generations": (generation(1, 1, 3), generation(2, 5, 9))}, "starts at 5, the one before ends at 3"),
        ({"generations": (generation(1, 1, 4), generation(2, 9, 5))}, "empty range 9..5"),
        (
            {"generations": (generation(1, 1, 4), replace(generation(2, 5, 9), path="another"))},
            "generation 2 was changed or is missing",
        ),
        ({"generations": (generation(2, 5, 9), generation(1, 1, 4))}, "not contiguous"),
    ],
)
def test_each_violation_is_reported(changes, message_part):
    assert any(
        message_part in found for found in violations(THIRD, replace(THIRD, **{"version": Version(4), **changes}))
    )


def test_the_next_generation_starts_at_the_replay_point_even_if_all_older_generations_are_collected():
    emptied = replace(THIRD, generations=(), collected_entries=sums(1, 9))
    gap = generation(3, 11, 12)
    skipping = {
        "generations": (gap,),
        "current_generation": Generation(4),
        "replay_after": Position(12),
        "entry_setsum": sums(1, 9) + sums(11, 12),
    }
    assert after(emptied, **skipping) == ["the next generation starts at 11, but the replay point was 9"]


def test_generations_that_lance_wrote_have_no_ranges_and_are_accepted():
    foreign = FlushedGeneration(generation=Generation(1), path="aaaaaaaa_gen_1", rows=3, bytes=None)
    adopted = replace(FIRST, generations=(foreign,), current_generation=Generation(2), replay_after=Position(3))
    assert violations(FIRST, replace(adopted, version=Version(2))) == []
    ours = replace(flush(adopted, 5), entry_setsum=sums(4, 5))
    assert violations(adopted, ours) == []


FULL = replace(
    THIRD,
    sealed=True,
    collector_round=4,
    collector_key=round_list(REGION, 4, Nonce("0" * 32)),
    collector_setsum=Setsum.of([b"list"]),
    collector_committed=1.5,
    collected_rows=Setsum.of([b"rows"]),
    last_seen=Position(20),
    compactions=2,
    producers={producer_id("a"): Producer(1, 7), producer_id("b"): Producer(2)},
    values=(("a", b""), ("b", b"\0\xff")),
)


@pytest.mark.parametrize("manifest", [FIRST, SECOND, FULL], ids=["first", "second", "full"])
def test_a_manifest_survives_encoding(manifest):
    body = manifest_codec.encode(manifest)
    assert manifest_codec.decode(body, key="k") == manifest
    assert not manifest_codec.written_by_lance(body)


def test_every_field_is_encoded():
    blank = Manifest(region=REGION, spec_id=0, values=(), version=Version(0), epoch=Epoch(0))
    for field in fields(Manifest):
        if getattr(FULL, field.name) != getattr(blank, field.name):
            changed = replace(blank, **{field.name: getattr(FULL, field.name)})
            assert manifest_codec.decode(manifest_codec.encode(changed), key="k") == changed, field.name


def test_equal_manifests_have_equal_bytes_in_any_order_of_producers():
    turned = replace(FULL, producers=dict(reversed(FULL.producers.items())))
    assert manifest_codec.encode(turned) == manifest_codec.encode(FULL)


def test_lance_decodes_our_manifest_field_by_field():
    message = lance.ShardManifest.FromString(manifest_codec.encode(FULL))
    assert (
        message.version,
        message.writer_epoch,
        message.replay_after_wal_entry_position,
        message.wal_entry_position_last_seen,
        message.current_generation,
        message.shard_spec_id,
        message.status,
    ) == (3, 1, 9, 20, 3, 1, lance.SEALED)
    assert message.shard_id.uuid.hex() == REGION.replace("-", "")


def test_a_manifest_that_lance_wrote_has_zero_sums_and_the_floor_one():
    message = pb.Manifest(version=4, writer_epoch=2, current_generation=2, shard_id=pb.Uuid(uuid=bytes(16)))
    message.generations.add(generation=1, path="aaaaaaaa_gen_1", physical_rows=3)
    read = manifest_codec.decode(message.SerializeToString(), key="k")
    assert manifest_codec.written_by_lance(message.SerializeToString())
    assert (read.first_position, read.entry_setsum, read.replay_epoch) == (1, Setsum(), 0)
    assert read.generations == (FlushedGeneration(generation=Generation(1), path="aaaaaaaa_gen_1", rows=3, bytes=None),)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"",
        pb.Manifest(shard_id=pb.Uuid(uuid=b"short")).SerializeToString(),
        pb.Manifest(shard_id=pb.Uuid(uuid=bytes(16)), entry_setsum=b"short").SerializeToString(),
        pb.Manifest(shard_id=pb.Uuid(uuid=bytes(16)), entry_setsum=b"\xff" * 32).SerializeToString(),
    ],
    ids=["not a message", "empty", "short region id", "short sum", "invalid sum"],
)
def test_bytes_that_are_not_a_manifest_are_corrupt_and_the_error_names_the_object(body):
    with pytest.raises(Corrupt, match="not a manifest") as raised:
        manifest_codec.decode(body, key="the key")
    assert raised.value.where == {"object": "the key"}


def test_a_manifest_of_a_newer_release_is_invalid():
    message = pb.Manifest(shard_id=pb.Uuid(uuid=bytes(16)), format=5)
    with pytest.raises(Invalid, match=r"format 5, this release reads up to 4.*newer lancelsm"):
        manifest_codec.decode(message.SerializeToString(), key="k")
