"""Each check of the verifier matters: a forged round shows it, which only a bug of `mark` could write.

The verifier refuses the round, and accepts it without the check. If a second check refuses the round too (`behind`),
the verifier accepts it only without both.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

from lancelsm.common.layout import (
    Generation,
    Position,
    Version,
    generation_path,
    published_manifest,
    round_list,
    version_hint,
    wal_entry,
)
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.gc import collect as collection
from lancelsm.gc import verify
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, read_list
from lancelsm.gc.lists import encode as encode_list
from lancelsm.gc.mark import Progress
from lancelsm.region import manifest_codec
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.manifest import Manifest
from lancelsm.wal.entry import encode
from tests.simulation.collecting import TableEnv, filled
from tests.simulation.environment import a_nonce, row
from tests.simulation.marks import changed, marks, without
from tests.simulation.removal import Check, check_is_needed

Verify = Callable[[], None]  # verifies a forged round


def in_table_env(table_env: TableEnv, change: Callable[[Round], Round]) -> Verify:
    """Mark a round in the table environment, change it, and return a function that verifies it."""
    context = table_env.region("marker").context
    with table_env.collecting():
        (key,) = collection.mark(table_env.handle("marker", faulty=False)).rounds
    found = change(read_list(context, key).round)
    key = round_list(table_env.environment.id, found.number, context.ids.nonce())
    context.objects.create(key, encode_list(found))
    return partial(verify_round, table_env, key)


def verify_round(table_env: TableEnv, key: str) -> None:
    with table_env.collecting():
        collection.verify(table_env.handle("verifier", faulty=False), [key])


def with_item(kind: GarbageKind, path: str, number: int) -> Callable[[Round], Round]:
    """Add one item to a round."""
    item = GarbageItem(kind=kind, path=path, number=number, bytes=1, why="a bug")
    return lambda found: replace(found, items=(*found.items, item))


# Items


def below(kind: GarbageKind, name: str, number: int) -> Verify:
    table_env = filled()
    return in_table_env(table_env, with_item(kind, f"_mem_wal/{table_env.environment.id}/{name}", number))


def outside(kind: GarbageKind, path: str, number: int) -> Verify:
    return in_table_env(filled(), with_item(kind, path, number))


def under_another_number() -> Verify:
    table_env = filled()
    return in_table_env(table_env, with_item(GarbageKind.GENERATION, path_of(table_env, 3), 1))


def path_of(table_env: TableEnv, number: int) -> str:
    region = table_env.region("x")
    _, manifest = newest(region, region.head())
    return next(generation_path(region.id, g.path) for g in manifest.generations if g.generation == number)


def entry(position: int, number: int) -> Verify:
    table_env = filled()
    return in_table_env(
        table_env, with_item(GarbageKind.ENTRY, wal_entry(table_env.environment.id, Position(position)), number)
    )


def published(version: int, *, hint: int, number: int | None = None) -> Verify:
    table_env = filled()
    store, key = table_env.environment.store, version_hint(table_env.environment.id)
    store.remove(key)
    store.create(key, b'{"version":%d}' % hint)
    path = published_manifest(table_env.environment.id, Version(version))
    return in_table_env(table_env, with_item(GarbageKind.PUBLISHED, path, number or version))


def named_manifest() -> Verify:
    table_env = filled()
    head = table_env.region("x").head()
    return in_table_env(table_env, with_item(GarbageKind.STAGED, head.manifest_key, head.manifest_version))


def named_list() -> Verify:
    table_env = collected_once()
    region = table_env.region("x")
    _, manifest = newest(region, region.head())
    return in_table_env(table_env, with_item(GarbageKind.LIST, manifest.collector_key, manifest.collector_round))


def collected_once() -> TableEnv:
    table_env = filled()
    table_env.collect()
    table_env.merge()
    return table_env


def pinned(of_kind: GarbageKind) -> Verify:
    """The round deletes an object of a snapshot that is older than a flush and two merges."""
    table_env = filled()
    needs = table_env.pin("held").regions[table_env.environment.id]
    table_env.merge()
    table_env.write(100, 101)
    table_env.flush()
    table_env.merge()
    version = needs.manifest_version
    items = {
        GarbageKind.GENERATION: with_item(of_kind, path_of(table_env, 3), 3),
        GarbageKind.STAGED: with_item(of_kind, needs.manifest_key, version),
        GarbageKind.PUBLISHED: with_item(of_kind, published_manifest(table_env.environment.id, version), version),
    }
    return in_table_env(table_env, items[of_kind])


# Generations


def ahead() -> Verify:
    """The base is newer than the heads: the registry is an older copy."""
    table_env = filled()
    verify_forged = in_table_env(table_env, lambda found: found)
    table_env.counter = Generation(7)
    return verify_forged


def lagging(what: str) -> Verify:
    table_env = filled()
    verify_forged = in_table_env(table_env, lambda found: found)
    current, older = {table_env.environment.id: Generation(2)}, {table_env.environment.id: Generation(1)}
    progress = Progress(
        version=1,
        counters=older if what == "counter" else current,
        checked=older if what == "check" else current,
        markers=older if what == "marker" else current,
        caught_up={"by_id": older if what == "index" else current},
    )

    def verify_with_progress() -> None:
        with mock.patch.object(table_env, "progress", return_value=progress):
            verify_forged()

    return verify_with_progress


def from_the_middle() -> Verify:
    def without_the_oldest(found: Round) -> Round:
        return replace(found, items=tuple(i for i in found.items if (i.kind, i.number) != (GarbageKind.GENERATION, 1)))

    return in_table_env(filled(merged=4), without_the_oldest)


# Log


def floor(position: int, *, through: int | None = None, generations: bool = False) -> Verify:
    """A round that deletes only the log below a floor; its sum is that of the entries through a position."""
    table_env = filled()

    def change(found: Round) -> Round:
        items = tuple(i for i in found.items if i.kind is GarbageKind.GENERATION) if generations else ()
        return replace(found, floor=position, items=items, discarded=sum_through(table_env, through or position - 1))

    return in_table_env(table_env, change)


def sum_through(table_env: TableEnv, through: int) -> Setsum:
    entries = [
        entry.summary.entry_setsum for position, entry in table_env.environment.log.items() if position <= through
    ]
    return sum(entries, start=Setsum.ZERO)


def pinned_log() -> Verify:
    """A pin of the log that was recorded after mark had read the pins."""
    table_env = filled()
    verify_forged = in_table_env(table_env, lambda found: found)
    table_env.begin_pin("late", replace(table_env.needs(table_env.region("x")), first_position=Position(3)))
    return verify_forged


def another_entry() -> Verify:
    """The floor is inside a generation, and one of the entries that stay is not the entry that was flushed."""
    table_env = filled()
    verify_forged = in_table_env(
        table_env, lambda found: replace(found, floor=4, items=(), discarded=sum_through(table_env, 3))
    )
    key = wal_entry(table_env.environment.id, Position(4))
    table_env.environment.store.remove(key)
    other = encode(
        row(999), position=Position(4), epoch=table_env.environment.log[Position(4)].summary.epoch, nonce=a_nonce(999)
    )
    table_env.environment.store.create(key, other.body)
    return verify_forged


def unbalanced() -> Verify:
    """The newest generation in the manifest has another sum than the log. The round ends before that generation."""
    table_env = filled()
    verify_forged = in_table_env(
        table_env, lambda found: replace(found, floor=3, items=(), discarded=sum_through(table_env, 2))
    )
    region = table_env.region("x")
    head, manifest = newest(region, region.head())
    *others, last = manifest.generations
    assert last.folded is not None
    last = replace(last, folded=replace(last.folded, entry_setsum=Setsum.of([b"x"])))
    rewrite(table_env, head.manifest_key, replace(manifest, generations=(*others, last)))
    return verify_forged


def rewrite(table_env: TableEnv, key: str, manifest: Manifest) -> None:
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, manifest_codec.encode(manifest))


def whole_log() -> Verify:
    table_env = filled()
    verify_forged = in_table_env(table_env, lambda found: found)
    table_env.settings = Settings(collect_floor_bytes=1000)
    return verify_forged


# The round


def another_round() -> Verify:
    return in_table_env(filled(), lambda found: replace(found, number=3))


def another_region() -> Verify:
    other = filled().region("x").id.replace("-", "")[::-1]
    other_region = f"{other[:8]}-{other[8:12]}-{other[12:16]}-{other[16:20]}-{other[20:]}"
    return in_table_env(filled(), lambda found: replace(found, region=other_region, items=()))  # type: ignore[arg-type]


NONCE = "0" * 32
NEITHER_END = (
    changed(
        "floor is within known sums",
        "min((position for position in bounds if position >= floor - 1), default=Position(floor - 1))",
    ),
    without("log is what was flushed"),
)
ANY_NAME = (without("item has the name of its kind"),)

GUARDS: dict[str, Check] = {
    "an item is below the directory of the region": Check(
        edits=(without("item is below the region"),),
        behind=ANY_NAME,
        forged=partial(outside, GarbageKind.ENTRY, "_lancelsm/config.json", 1),
    ),
    "a path does not leave the directory of the region": Check(
        edits=(without("path does not leave the region"),),
        behind=ANY_NAME,
        forged=partial(below, GarbageKind.GENERATION, "../other/00000000_gen_1", 1),
    ),
    "the manifest that the head names stays": Check(
        edits=(without("verifier keeps the manifest of the head"),),
        forged=named_manifest,
    ),
    "the list that the manifest names stays": Check(
        edits=(without("verifier keeps the list of the manifest"),),
        forged=named_list,
    ),
    "the path of a generation has its number": Check(
        edits=(without("path of a generation has its number", instead=True),),
        forged=under_another_number,
    ),
    "the path of an entry has its position": Check(
        edits=(without("path of an entry has its position", instead=True),),
        forged=partial(entry, 9, 1),
    ),
    "the path of a staged manifest has its version": Check(
        edits=(without("path of a staged manifest has its version", instead=True),),
        forged=partial(below, GarbageKind.STAGED, f"manifest/staged/6-{NONCE}.binpb", 1),
    ),
    "the path of a published manifest has its version": Check(
        edits=(without("path of a published manifest has its version", instead=True),),
        forged=partial(published, 5, hint=5, number=1),
    ),
    "the path of a list has the number of its round": Check(
        edits=(without("path of a list has its round", instead=True),),
        forged=partial(below, GarbageKind.LIST, f"gc/1-{NONCE}.binpb", 0),
    ),
    "a round of a region deletes no object of the base": Check(
        edits=(without("round of a region keeps the base", instead=True),),
        forged=partial(below, GarbageKind.BASE_FILE, "data/x.lance", 0),
    ),
    "entries from the floor on stay": Check(
        edits=(without("verifier keeps the log"),),
        forged=partial(entry, 9, 9),
    ),
    "a staged manifest of a later version stays": Check(
        edits=(without("verifier keeps manifests in flight"),),
        forged=partial(below, GarbageKind.STAGED, f"manifest/staged/6-{NONCE}.binpb", 6),
    ),
    "published manifests stay from the hint on": Check(
        edits=(without("verifier keeps published manifests from the hint on"),),
        forged=partial(published, 4, hint=3),
    ),
    "the newest published manifest stays whatever the hint says": Check(
        edits=(without("verifier keeps the newest published manifest"),),
        forged=partial(published, 5, hint=9),
    ),
    "a pinned published manifest stays": Check(
        edits=(without("verifier keeps pinned published manifests"),),
        forged=partial(pinned, GarbageKind.PUBLISHED),
    ),
    "a pinned staged manifest stays": Check(
        edits=(without("verifier keeps pinned staged manifests"),),
        forged=partial(pinned, GarbageKind.STAGED),
    ),
    "a list of a later round stays": Check(
        edits=(without("verifier keeps lists of later rounds"),),
        forged=partial(below, GarbageKind.LIST, f"gc/1-{NONCE}.binpb", 1),
    ),
    "the base is not ahead of the head": Check(
        edits=(without("base is not ahead of the head"),),
        forged=ahead,
    ),
    "a generation that a flush may be writing stays": Check(
        edits=(without("verifier keeps generations in flight"),),
        forged=partial(below, GarbageKind.GENERATION, "00000000_gen_5", 5),
    ),
    "a pinned generation stays": Check(
        edits=(without("verifier keeps pinned generations"),),
        forged=partial(pinned, GarbageKind.GENERATION),
    ),
    "the base contains each deleted generation": Check(
        edits=(without("base has each deleted generation"),),
        forged=partial(lagging, "counter"),
    ),
    "the checked base contains each deleted generation": Check(
        edits=(without("verifier keeps what is not checked"),),
        forged=partial(lagging, "check"),
    ),
    "Lance's marker has passed each deleted generation": Check(
        edits=(without("marker has each deleted generation"),),
        forged=partial(lagging, "marker"),
    ),
    "every index contains each deleted generation": Check(
        edits=(without("every index has each deleted generation"),),
        forged=partial(lagging, "index"),
    ),
    "the oldest generations are deleted first": Check(
        edits=(without("oldest generations are deleted first"),),
        forged=from_the_middle,
    ),
    "the floor of the log does not fall": Check(
        edits=(without("verified floor does not fall"),),
        forged=partial(floor, 0),
    ),
    "the floor is not past the replay point": Check(
        edits=(without("verified floor is not past the replay point"),),
        behind=NEITHER_END,
        forged=partial(floor, 11),
    ),
    "the pinned log stays": Check(
        edits=(without("verifier keeps the pinned log"),),
        forged=pinned_log,
    ),
    "the list has the sum of its entries up to a floor inside a generation": Check(
        edits=(without("list has the sum up to its floor"),),
        forged=partial(floor, 4, through=2),
    ),
    "the list has the sum of its entries up to the end of a generation": Check(
        edits=(without("list has the sum up to a boundary"),),
        forged=partial(floor, 5, through=2),
    ),
    "the log is what was flushed": Check(
        edits=(without("log is what was flushed"),),
        forged=another_entry,
    ),
    "a generation is deleted after its entries": Check(
        edits=(without("verifier keeps generations with entries"),),
        forged=partial(floor, 3, generations=True),
    ),
    "generations and collected entries add up to the log": Check(
        edits=(without("generations add up to the log"),),
        forged=unbalanced,
    ),
    "a round takes no more than a share of a large log": Check(
        edits=(without("round takes a share of the log"),),
        forged=whole_log,
    ),
    "the number of the round is the next one": Check(
        edits=(without("verified round is the next one"),),
        forged=another_round,
    ),
    "the round is a round of the region": Check(
        edits=(without("verified round is of the region"),),
        forged=another_region,
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_a_forged_round_is_refused_by_its_check_and_accepted_without_it(guard: str) -> None:
    check_is_needed(GUARDS[guard])


def test_every_check_of_the_verifier_is_marked() -> None:
    source = inspect.getsource(verify)
    marked = {mark.line for mark in marks() if str(mark.path) == verify.__file__}

    left = [
        ast.unparse(check)
        for first, last, check in conditions(ast.parse(source))
        if marked.isdisjoint(range(first, last + 1))
    ]
    assert left == [
        "record is None",  # without these two, nothing can be checked
        "named is None",
        "item.path in needed",  # `needed` has the marks
        "min((one.get(self._region.id, 0) for one in known)) < item.number",  # `known` has the marks
        "size * 100 <= self._round.log_bytes * settings.collect_share_percent",  # only decides which error is raised
    ]


def conditions(tree: ast.Module) -> list[tuple[int, int, ast.expr]]:
    """Return the conditions under which the verifier refuses a round, with their first and last lines."""

    def refuses(node: ast.stmt) -> bool:
        return isinstance(node, ast.Raise) or (
            isinstance(node, ast.Expr)
            and bool(re.match(r"self\._(refuse|overtaken|unbalanced|wrong_sum)\(", ast.unparse(node)))
        )

    checks = ("verify_region", "items", "generations", "log", "_parts", "_share")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in checks]
    found = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.If)]
    return [(node.lineno, node.test.end_lineno or 0, node.test) for node in found if any(map(refuses, node.body))]
