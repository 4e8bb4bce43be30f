"""In any order of flushes, compactions, claims, seals and collections, each manifest may follow the one before it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lancelsm.common.layout import Epoch, Generation, Nonce, Position, RegionId, Version, round_list
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec
from lancelsm.region.head import LogTotals, Summary
from lancelsm.region.manifest import FlushedGeneration, FlushedRange, Manifest, Superseded
from lancelsm.region.manifest_invariants import violations

FIRST = Manifest(
    region=RegionId("d00cc65e-1b58-41a4-a929-5096334c8657"), spec_id=1, values=(), version=Version(1), epoch=Epoch(1)
)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("flush"), st.integers(1, 5)),
        st.tuples(st.just("compact"), st.integers(2, 4)),
        st.tuples(st.just("claim"), st.integers(0, 3)),
        st.tuples(st.just("collect"), st.integers(0, 3)),
        st.tuples(st.just("floor"), st.integers(0, 6)),
        st.tuples(st.just("seal"), st.just(0)),
    ),
    max_size=12,
)


def entry(position):
    return Summary(
        position=position,
        epoch=Epoch(1),
        rows=1,
        bytes=9,
        entry_setsum=Setsum.of([b"%d" % position]),
        applied_sequences={"q": "1"},
    )


def apply(manifest, step):
    kind, size = step
    if kind == "flush":
        first, last = manifest.replay_after + 1, manifest.replay_after + size
        entries = [entry(position) for position in range(first, last + 1)]
        totals = manifest.totals.after(entries)
        folded = FlushedRange(
            first=Position(first),
            last=Position(last),
            entry_setsum=totals.entry_setsum - manifest.entry_setsum,
            row_setsum=Setsum.of([b"rows of %d" % first]),
        )
        number = manifest.current_generation
        built = FlushedGeneration(
            generation=number, path=f"{first:08x}_gen_{number}", rows=size, bytes=1, folded=folded
        )
        return manifests.flushed(manifest, after=manifest.replay_after, built=built, at_end=totals)
    if kind == "compact":
        parts = manifest.generations[-size:]
        return compact(manifest, parts) if len(parts) > 1 else manifest
    if kind == "claim":
        return manifests.with_epoch(manifest, epoch=Epoch(manifest.epoch + size), last_seen=manifest.replay_after)
    if kind == "collect":
        removed = manifest.generations[:size]
        number = manifest.collector_round + 1
        return manifests.collected(
            manifest,
            round_number=number,
            key=round_list(manifest.region, number, Nonce("0" * 32)),
            list_setsum=Setsum.of([b"list"]),
            first_position=Position(removed[-1].folded.last + 1 if removed else 1),
            paths=frozenset(g.path for g in removed),
            compactions=manifest.compactions,
            at=float(number),
        )
    if kind == "floor":
        floor = min(manifest.first_position + size, manifest.replay_after + 1)
        return replace(manifest, first_position=Position(floor))
    return manifests.with_seal(manifest, epoch=manifest.epoch, last_seen=manifest.replay_after)


def compact(manifest, parts):
    """Replace these generations by one."""
    first, last, entries = manifests.joined_range(parts)
    built = FlushedGeneration(
        generation=parts[-1].generation,
        path=f"{manifest.compactions + 1:08x}_gen_{parts[-1].generation}",
        rows=1,
        bytes=1,
        folded=FlushedRange(first=first, last=last, entry_setsum=entries, row_setsum=Setsum.of([b"newest rows"])),
        first_number=Generation(parts[0].numbers.start),
    )
    paths = [part.path for part in parts]
    return manifests.compacted(manifest, parts=paths, built=built, collector_round=manifest.collector_round)


def history(chosen_steps):
    manifest, built = FIRST, [FIRST]
    for step in chosen_steps:
        proposed = apply(manifest, step)
        if proposed != manifest:
            manifest = replace(proposed, version=Version(manifest.version + 1))
            built.append(manifest)
    return built


@given(steps)
def test_every_history_is_valid_and_every_manifest_survives_encoding(chosen_steps):
    older = None
    for manifest in history(chosen_steps):
        spans = [number for g in manifest.generations for number in g.numbers]
        assert spans == list(range(manifest.current_generation - len(spans), manifest.current_generation))
        assert violations(older, manifest) == []
        assert manifest_codec.decode(manifest_codec.encode(manifest), key="k") == manifest
        older = manifest


@given(steps)
def test_a_transition_that_is_already_committed_changes_nothing(chosen_steps):
    last = history(chosen_steps)[-1]
    for g in last.generations:
        again = manifests.compacted(last, parts=["gone"], built=g, collector_round=-1)
        assert again is last
        again = manifests.flushed(last, after=Position(g.folded.first - 1), built=g, at_end=LogTotals())
        assert again is last
    assert manifests.with_epoch(last, epoch=last.epoch, last_seen=Position(99)) is last


@given(steps, st.data())
def test_no_manifest_may_follow_a_later_one(chosen_steps, data):
    built = history(chosen_steps)
    newer, older = data.draw(st.sampled_from(built)), data.draw(st.sampled_from(built))
    if older.version <= newer.version:
        assert violations(newer, older)


@given(steps, st.data())
def test_a_second_flush_of_the_same_entries_is_superseded(chosen_steps, data):
    last = history(chosen_steps)[-1]
    if last.generations:
        g = data.draw(st.sampled_from(last.generations))
        rival = replace(g, path="ffffffff_gen_1")
        assert isinstance(
            manifests.flushed(last, after=Position(g.folded.first - 1), built=rival, at_end=LogTotals()), Superseded
        )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_raise_an_error(body):
    with suppress(Corrupt, Invalid):
        manifest_codec.decode(body, key="k")


@given(steps, st.integers(0), st.integers(0, 7))
def test_a_manifest_with_a_flipped_bit_is_a_manifest_or_raises_an_error(chosen_steps, index, bit):
    body = bytearray(manifest_codec.encode(history(chosen_steps)[-1]))
    body[index % len(body)] ^= 1 << bit
    with suppress(Corrupt, Invalid):
        manifest_codec.decode(bytes(body), key="k")


@given(steps)
def test_generation_numbers_count_every_flush(chosen_steps):
    built = history(chosen_steps)
    flushes = sum(kind == "flush" for kind, _ in chosen_steps)
    assert built[-1].current_generation == Generation(flushes + 1)
