"""The one compare-and-swap loop of manifests: stage, swap the head, publish.

A manifest is staged under a name of its own and becomes the region's by the swap that names it in the head; it is
published under Lance's name right after, and by whoever commits the next one if that did not happen. Model:
tests/model/head_commits.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lancelsm.common.clock import Budget
from lancelsm.common.layout import Version, published_manifest, staged_manifest, version_hint
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, LsmError, Unavailable, error_context
from lancelsm.objects import put_once
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.manifest import Dead, Manifest

Transition = Callable[[Manifest], Manifest | Dead]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A manifest as an object that a head names, or is about to."""

    key: str
    manifest: Manifest
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedManifest:
    """The manifest that holds the transition's effect, and a head that was read or swapped with it in place."""

    manifest: Manifest
    head: Head


def commit(region: Region, transition: Transition) -> CommittedManifest | Dead:
    """Apply a transition to the region's manifest.

    Args:
        transition: pure; called with the newest manifest, perhaps several times. Returns the next manifest (its version
            is set here), the same value if its effect is there already, or `Dead` if it can never apply any more.

    Returns:
        Once the head names a manifest with the effect; or the transition's `Dead`.

    Raises:
        Contended: other manifest commits were faster until the budget was spent; nothing was committed.
        Unavailable: the store or the registry gave no answer before the swap; nothing was committed.
        Ambiguous: the swap got no answer until the budget was spent.
        Corrupt: the next manifest would break an invariant, or a published manifest is not the registry's.

    A crash at any line leaves the old manifest or the new one; a staged file that no head names is an orphan. A
    committed manifest that was not published yet is published by the next committer before it commits.
    """
    budget = region.context.budget()
    for _ in budget.attempts():
        head, current = _named(region, region.head(), budget=budget)
        proposed = transition(current.manifest)
        if isinstance(proposed, Dead):
            return proposed
        _ensure_published(region, current, budget=budget)  # before its successor exists: readers stop at a hole
        if proposed == current.manifest:
            return CommittedManifest(manifest=proposed, head=head)
        version = Version(current.manifest.version + 1)
        if _is_taken(region, head, version):
            continue
        staged = stage(region, replace(proposed, version=version), after=current.manifest, budget=budget)
        swapped = _swap(region, head, staged, budget=budget)
        if swapped is not None:
            with suppress(Unavailable):  # the next committer makes sure of it
                publish(region, staged, budget=budget)
            return CommittedManifest(manifest=staged.manifest, head=swapped)
    raise Contended(
        "others committed manifests faster until the retry budget was spent",
        remedy="Nothing was committed: retry",
        **region.where,
    )


def load(region: Region, key: str) -> Staged | None:
    """The manifest at a key, or None if it is gone.

    Raises:
        Corrupt: it is no manifest, or another region's.
    """
    found = region.context.objects.get(key)
    if found is None:
        return None
    with error_context(**region.where):
        manifest = manifests.decode(found.body, key=key)
    if manifest.region != region.id:
        raise Corrupt(f"a manifest of region {manifest.region}", **region.where, object=key)
    return Staged(key=key, manifest=manifest, body=found.body)


def newest(region: Region, head: Head) -> tuple[Head, Manifest]:
    """The manifest that the head names; if it was swept since the head was read, a fresh head and its manifest."""
    head, staged = _named(region, head, budget=region.context.budget())
    return head, staged.manifest


def stage(
    region: Region, manifest: Manifest, *, after: Manifest | None, budget: Budget, body: bytes | None = None
) -> Staged:
    """Write a manifest under a name that no head names yet.

    Args:
        body: its bytes, if it was published already: those of Lance's writer are not what we would make of it.

    Raises:
        Corrupt: it breaks an invariant.
        Unavailable: the store gave no answer.
    """
    broken = manifests.violations(after, manifest)
    if broken:
        raise Corrupt(f"manifest {manifest.version} would break: {'; '.join(broken)}", **region.where)
    key = staged_manifest(region.id, manifest.version, region.context.ids.nonce())
    body = manifests.encode(manifest) if body is None else body
    if put_once(region.context.objects, key, body, attempts=budget.attempts()) is None:
        raise Unavailable("the manifest could not be staged", remedy="Retry", **region.where, object=key)
    return Staged(key=key, manifest=manifest, body=body)


def publish(region: Region, staged: Staged, *, budget: Budget) -> None:
    """Make sure that a committed manifest stands under the name where Lance's readers look for it.

    Raises:
        Corrupt: another manifest stands there: a writer works outside the registry.
        Unavailable: the store gave no answer.
    """
    version = staged.manifest.version
    key = published_manifest(region.id, version)
    found = put_once(region.context.objects, key, staged.body, attempts=budget.attempts())
    if found is None:
        raise Unavailable("the manifest could not be published", remedy="Retry", **region.where, object=key)
    if found != staged.body:
        raise _foreign(region, version)
    _raise_hint(region, version)


def ensure_unused(region: Region) -> None:
    """Before a region is made: nothing must lie there of one that the registry has forgotten.

    Raises:
        Corrupt: manifests beyond the first one were published.
    """
    objects = region.context.objects
    hint = objects.get(version_hint(region.id))
    second = published_manifest(region.id, Version(2))
    if (hint is not None and hinted(hint.body) > 1) or objects.get(second) is not None:
        raise Corrupt(
            "the registry does not know the region, but its manifests are there",
            remedy=f"Stop all writers, then: lancelsm registry rebuild {region.context.uri}",
            **region.where,
        )


def _named(region: Region, head: Head, *, budget: Budget) -> tuple[Head, Staged]:
    """As `newest`, with its bytes."""
    for _ in budget.attempts():
        staged = load(region, head.manifest_key)
        if staged is not None:
            return head, staged
        fresh = region.head()
        if fresh.manifest_key == head.manifest_key:
            raise Corrupt(
                "the manifest that the head names is gone",
                remedy="Put it back from a copy of the bucket, or stop all writers and run `lancelsm registry rebuild`",
                **region.where,
                object=head.manifest_key,
            )
        head = fresh
    raise Contended(
        "manifests were replaced and collected faster than they could be read until the retry budget was spent",
        remedy="Nothing was committed: retry",
        **region.where,
    )


def _ensure_published(region: Region, staged: Staged, *, budget: Budget) -> None:
    found = region.context.objects.get(published_manifest(region.id, staged.manifest.version))
    if found is None or found.body != staged.body:
        publish(region, staged, budget=budget)


def _is_taken(region: Region, head: Head, version: Version) -> bool:
    """Whether another committer has this version by now.

    Raises:
        Corrupt: it is published, and the head doesn't know of it: a writer works outside the registry, or the registry
            is an older copy. A generation with a number that the base has merged already must not come to be.
    """
    if region.context.objects.get(published_manifest(region.id, version)) is None:
        return False
    if region.head().manifest_version == head.manifest_version:
        raise _foreign(region, version)
    return True


def _foreign(region: Region, version: Version) -> Corrupt:
    return Corrupt(
        f"version {version} of the manifest was written outside the registry, or the registry is an older copy",
        remedy=f"Stop that writer, or all of them, then: lancelsm region adopt {region.context.uri}",
        **region.where,
        object=published_manifest(region.id, version),
    )


def _swap(region: Region, head: Head, staged: Staged, *, budget: Budget) -> Head | None:
    """Name the staged manifest in the head. None if another manifest took its version."""
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
    )
    cause: LsmError | None = None
    for _ in budget.attempts():
        try:
            outcome = region.swap(swap)
            if isinstance(outcome, Head):
                return outcome
            now = region.head_after(outcome)
            if now.manifest_key == staged.key:
                return now
            if now.manifest_version == manifest.version:
                return None
            if now.manifest_version > manifest.version:
                return now if _was_published(region, staged) else None
        except (Unavailable, Invalid) as error:  # neither says what became of the swap
            cause = error
    raise Ambiguous(
        "the manifest may or may not be committed: the registry gave no answer that proves anything",
        remedy="Run the command again: it recognises its own work",
        **region.where,
    ) from cause


def _was_published(region: Region, staged: Staged) -> bool:
    """Whether our version was ours, now that it has successors: it was published before the first of them."""
    found = region.context.objects.get(published_manifest(region.id, staged.manifest.version))
    if found is None:
        raise Ambiguous(
            "the manifest may or may not have been committed: the log was collected meanwhile",
            remedy="Run the command again: it recognises its own work",
            **region.where,
        )
    return found.body == staged.body


def _raise_hint(region: Region, version: Version) -> None:
    """Tell Lance's readers where to start; upwards only. They walk up from there, so a lost write costs little."""
    objects = region.context.objects
    key = version_hint(region.id)
    body = json.dumps({"version": version}, separators=(",", ":")).encode()  # as Lance writes it, to the byte
    found = objects.get(key)
    if found is None:
        put_once(objects, key, body, attempts=range(2))
        return
    if hinted(found.body) < version:
        objects.replace(key, body, expect=found.etag)


def hinted(body: bytes) -> int:
    """The version in a hint; 0 if it is unreadable, as Lance takes it."""
    try:
        return int(json.loads(body)["version"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0
