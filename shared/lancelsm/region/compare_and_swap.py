"""Commit manifests with one compare-and-swap loop: stage, swap the head, publish.

A manifest is staged under a unique name. The swap that names it in the head commits it. Right after that it is
published under Lance's name. If the committer crashes before that, the committer of the next manifest publishes it.
Model: tests/model/head_commits.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lancelsm.common.clock import Budget
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import Version, published_manifest, staged_manifest, version_hint
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, LsmError, Unavailable, error_context
from lancelsm.objects import put_once
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec, manifest_invariants
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest, Superseded
from lancelsm.region.since import Since
from lancelsm.registry import SwapUnknown

Transition = Callable[[Manifest], Manifest | Superseded]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged manifest: the object that a head names or will name."""

    key: str
    manifest: Manifest
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedManifest:
    """A committed manifest, and a head that names it or a later one."""

    staged: Staged
    head: Head

    @property
    def manifest(self) -> Manifest:
        return self.staged.manifest


def commit(
    region: Region, transition: Transition, *, seen: CommittedManifest | None = None, flushed: Since | None = None
) -> CommittedManifest | Superseded:
    """Apply a transition to the region's manifest.

    Args:
        transition: a pure function; called with the newest manifest, perhaps several times. It returns the next
            manifest (its version is set here), the same value if the effect is already there, or `Superseded` if it can
            never apply any more.
        seen: what the caller read, or committed, before. It saves the first read. If it is not the newest manifest any
            more, the swap is refused, and then the newest one is read.
        flushed: see `heads.manifest_swapped`.

    Returns:
        The manifest that has the effect, once a head names it; or the `Superseded` of the transition.

    Raises:
        Contended: other manifest commits were faster until the retry budget was spent. Nothing was committed.
        Unavailable: the store or the registry did not answer before the swap. Nothing was committed.
        Ambiguous: the swap got no conclusive answer until the budget was spent.
        Invalid: the table was dropped.
        Corrupt: the next manifest would break an invariant, or a manifest was published that the registry doesn't know.

    A crash at any line leaves the old manifest or the new one; a staged object that no head names is an orphan. If a
    committed manifest was not published, the next committer publishes it before it commits.
    """
    budget = region.context.budget()
    known = seen if seen is not None and seen.head.manifest_key == seen.staged.key else None
    for _ in budget.attempts():
        found, known = known or _load_named(region, region.head(), budget=budget), None
        head, current = found.head, found.staged
        proposed = transition(current.manifest)
        if isinstance(proposed, Superseded):
            return proposed
        # Publish a manifest before its successor: readers stop at a hole.
        _ensure_published(region, current, budget=budget)  # guard: manifest is published before its successor
        if proposed == current.manifest:
            return found
        version = Version(current.manifest.version + 1)
        if _is_taken(region, head, version):  # guard: foreign manifest stops a commit
            continue
        staged = stage(region, replace(proposed, version=version), after=current.manifest, budget=budget)
        swapped = _swap(region, head, staged, flushed=flushed, budget=budget)
        if swapped is not None:
            # If this fails, the next committer publishes it.
            with suppress(Unavailable):  # guard: manifest is published after its commit
                publish(region, staged, budget=budget)
            return CommittedManifest(staged=staged, head=swapped)
    raise Contended(
        "other manifest commits were faster until the retry budget was spent",
        remedy="Nothing was committed: retry",
        **region.where,
    )


def load(region: Region, key: str) -> Staged | None:
    """Read the manifest at a key; None if there is no object.

    Raises:
        Corrupt: the object is not a manifest, or belongs to another region.
    """
    found = region.context.objects.get(key)
    if found is None:
        return None
    with error_context(**region.where):
        manifest = manifest_codec.decode(found.body, key=key)
    if manifest.region != region.id:
        raise Corrupt(f"the manifest belongs to region {manifest.region}", **region.where, object=key)
    return Staged(key=key, manifest=manifest, body=found.body)


def newest(region: Region, head: Head) -> tuple[Head, Manifest]:
    """Read the manifest that the head names. If it was swept meanwhile, read a new head and its manifest."""
    found = read_committed(region, head)
    return found.head, found.manifest


def read_committed(region: Region, head: Head) -> CommittedManifest:
    """Read what `newest` reads, in the form that `commit` takes."""
    return _load_named(region, head, budget=region.context.budget())


def stage(
    region: Region, manifest: Manifest, *, after: Manifest | None, budget: Budget, body: bytes | None = None
) -> Staged:
    """Write a manifest as a staged object with a unique name.

    Args:
        after: the manifest before it; None for the first one.
        body: the bytes, if it was published already: Lance's writer encodes a manifest to other bytes than we do.

    Raises:
        Corrupt: the manifest breaks an invariant.
        Unavailable: the store did not answer.
    """
    broken = manifest_invariants.violations(after, manifest)
    if broken:  # guard: manifest breaks no invariant
        raise Corrupt(f"manifest {manifest.version} would break invariants: {'; '.join(broken)}", **region.where)
    key = staged_manifest(region.id, manifest.version, region.context.ids.nonce())
    body = manifest_codec.encode(manifest) if body is None else body
    if put_once(region.context.objects, key, body, attempts=budget.attempts()) is None:
        raise Unavailable("the manifest could not be staged", **region.where, object=key)
    return Staged(key=key, manifest=manifest, body=body)


def publish(region: Region, staged: Staged, *, budget: Budget) -> None:
    """Publish a committed manifest under the name where Lance's readers look for it. Idempotent.

    Raises:
        Corrupt: another manifest is published under that name: a writer does not use the registry.
        Unavailable: the store did not answer.
    """
    version = staged.manifest.version
    key = published_manifest(region.id, version)
    found = put_once(region.context.objects, key, staged.body, attempts=budget.attempts())
    if found is None:
        raise Unavailable("the manifest could not be published", **region.where, object=key)
    if found != staged.body:
        raise _not_in_registry(region, version)
    _raise_hint(region, version)


def ensure_unused(region: Region) -> None:
    """Check before the creation of a region that the registry has not lost an existing region.

    Raises:
        Corrupt: manifests after the first one were published.
    """
    objects = region.context.objects
    hint = objects.get(version_hint(region.id))
    second = published_manifest(region.id, Version(2))
    if (hint is not None and decode_hint(hint.body) > 1) or objects.get(second) is not None:
        raise Corrupt(
            "the registry does not know the region, but its manifests exist",
            remedy=region.context.rebuild_remedy,
            **region.where,
        )


def _load_named(region: Region, head: Head, *, budget: Budget) -> CommittedManifest:
    """Read the manifest that the head names, with its bytes. If it was swept meanwhile, read a new head first."""
    for _ in budget.attempts():
        staged = load(region, head.manifest_key)
        if staged is not None:
            return CommittedManifest(staged=staged, head=head)
        fresh = region.head()
        if fresh.manifest_key == head.manifest_key:
            raise Corrupt(
                "the manifest that the head names is gone",
                remedy=f"Restore it from a copy of the bucket. Without a copy: {region.context.rebuild_remedy}",
                **region.where,
                object=head.manifest_key,
            )
        head = fresh
    raise Contended(
        "manifests were replaced and deleted faster than they could be read, until the retry budget was spent",
        remedy="Nothing was committed: retry",
        **region.where,
    )


def _ensure_published(region: Region, staged: Staged, *, budget: Budget) -> None:
    found = region.context.objects.get(published_manifest(region.id, staged.manifest.version))
    if found is None or found.body != staged.body:
        publish(region, staged, budget=budget)


def _is_taken(region: Region, head: Head, version: Version) -> bool:
    """Return whether another committer has committed this version.

    Raises:
        Corrupt: the version is published, but the head doesn't name it. A writer does not use the registry, or the
            registry was restored from an older copy. Then a commit could reuse a generation number that is already
            merged.
    """
    if region.context.objects.get(published_manifest(region.id, version)) is None:
        return False
    if region.head().manifest_version == head.manifest_version:
        raise _not_in_registry(region, version)
    return True


def _not_in_registry(region: Region, version: Version) -> Corrupt:
    return Corrupt(
        f"version {version} of the manifest is not in the registry: a writer does not use it, or it is an older copy",
        remedy=f"Stop all writers, then: lancelsm region adopt {region.context.uri}",
        **region.where,
        object=published_manifest(region.id, version),
    )


def _swap(region: Region, head: Head, staged: Staged, *, flushed: Since | None, budget: Budget) -> Head | None:
    """Swap the head to name the staged manifest. None if another manifest took its version."""
    manifest = staged.manifest
    swap = heads.manifest_swapped(
        head,
        version=manifest.version,
        key=staged.key,
        epoch=manifest.epoch,
        first_position=manifest.first_position,
        current_generation=manifest.current_generation,
        collector_round=manifest.collector_round,
        nonce=region.context.ids.nonce(),
        compacted=manifests.live_numbers(manifest, above=head.merged),
        flushed=flushed,
    )
    cause: LsmError | None = None
    for _ in budget.attempts():
        try:
            outcome = region.swap(swap)
            if isinstance(outcome, Head):
                return outcome
            now = region.head_after(outcome)
            if isinstance(outcome, SwapUnknown):
                cause = Unavailable(outcome.cause)
            if now.manifest_key == staged.key:  # guard: own manifest is recognised by its key
                return now
            if now.manifest_version == manifest.version:
                return None
            if now.manifest_version > manifest.version:
                return now if _was_published(region, staged) else None  # guard: own manifest is recognised if published
        except (Unavailable, Invalid) as error:  # the outcome of the swap is still unknown
            cause = error
    last = "" if cause is None else f" ({cause.message})"
    raise Ambiguous(
        f"the manifest may or may not be committed: the registry gave no conclusive answer{last}",
        remedy="Run the command again: it detects whether the first run succeeded",
        **region.where,
    ) from cause


def _was_published(region: Region, staged: Staged) -> bool:
    """Return whether our manifest was committed, after later versions exist: it was published before the next one."""
    found = region.context.objects.get(published_manifest(region.id, staged.manifest.version))
    if found is None:
        raise Ambiguous(
            "the manifest may or may not have been committed: it was collected meanwhile",
            remedy="Run the command again: it detects whether the first run succeeded",
            **region.where,
        )
    return found.body == staged.body  # guard: published manifest of another committer is recognised


def _raise_hint(region: Region, version: Version) -> None:
    """Raise the version hint, where Lance's readers start to walk up. A lost write only makes the walk longer."""
    objects = region.context.objects
    key = version_hint(region.id)
    body = json.dumps({"version": version}, separators=(",", ":")).encode()  # the same bytes as Lance writes
    found = objects.get(key)
    if found is None:
        put_once(objects, key, body, attempts=range(2))
        return
    if decode_hint(found.body) < version:  # guard: hint only rises
        objects.replace(key, body, expect=found.etag)  # guard: hint rises under its ETag


def decode_hint(body: bytes) -> int:
    """Decode the version in a hint; 0 if it is unreadable, as in Lance."""
    try:
        return int(parse_json(body)["version"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
