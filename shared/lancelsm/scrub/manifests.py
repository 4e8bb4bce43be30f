"""Scrub the manifests of a region: one that a head or a pin names, and those that are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lancelsm.common.layout import Version, published_manifest, published_version, staged_version, version_hint
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import Listed
from lancelsm.region import manifest as manifests
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.scrub.consistency import manifest_problems
from lancelsm.scrub.report import ObjectKind, Tally, head_path, problem_of
from lancelsm.scrub.suspects import Suspects, while_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestScrub:
    """Reads manifests of one region."""

    region: Region
    tally: Tally
    suspects: Suspects

    def named(self, key: str) -> Manifest | None:
        """The manifest at a key that a head or a pin names; suspect unless a later head names another."""
        self.tally.take()
        found = self.region.context.objects.get(key)
        problem, manifest = "it is gone", None
        if found is not None:
            try:
                manifest = manifests.decode(found.body, key=key)
                broken = manifest_problems(manifest)
                if manifest.region != self.region.id:
                    broken.append(f"it is a manifest of region {manifest.region}")
                if manifest.version != staged_version(key):
                    broken.append(f"it is version {manifest.version}")
                problem = "; ".join(broken)
            except (Corrupt, Invalid) as error:
                problem = problem_of(error)
        if problem:
            self.suspects.add(key, ObjectKind.STAGED, problem, still=while_named(key))
            return None
        return manifest

    def published(self, head: Head, listed: Sequence[Listed]) -> None:
        """The hint, the published manifests from there up, where Lance's readers walk, and those that nobody knows."""
        current, hinted = head.manifest_version, self._hinted(head)
        for number in range(hinted, current + 1):
            self._published(head, Version(number), promised=number < current or number == hinted)
        versions = {version for found in listed if (version := published_version(found.key)) is not None}
        for version in sorted(versions):
            if version > current:
                key = published_manifest(self.region.id, version)
                self._suspect(key, ObjectKind.FOREIGN, "a version that the head does not know", head)
                known = f"version {version} of the manifest was published"
                self._suspect(head_path(self.region), ObjectKind.HEAD, known, head)

    def _hinted(self, head: Head) -> int:
        """The version that the hint says; the newest one if it says none that can be."""
        current, key = head.manifest_version, version_hint(self.region.id)
        self.tally.take()
        start, problem = self._read_hint()
        if start is not None and not 1 <= start <= current:
            problem = f"it says {start}, the newest version is {current}"
        if problem:
            self._suspect(key, ObjectKind.HINT, problem, head)
        return current if problem or start is None else start

    def _read_hint(self) -> tuple[int | None, str]:
        """Where Lance's readers start to walk up, or why they find no place."""
        objects, first = self.region.context.objects, Version(1)
        hint = objects.get(version_hint(self.region.id))
        if hint is None:  # then they start at the first version: a crash comes between that one and its hint
            there = objects.get(published_manifest(self.region.id, first)) is not None
            return (first, "") if there else (None, "it is gone")
        try:
            return int(json.loads(hint.body)["version"]), ""
        except (ValueError, KeyError, TypeError, OverflowError):
            return None, "it is unreadable"

    def _published(self, head: Head, version: Version, *, promised: bool) -> None:
        """One published manifest.

        Args:
            promised: whether it was published: it has a successor, or the hint names it, which is raised after that.
                Else its committer is about to publish it, or has crashed: the next one does it first, and until then
                Lance's readers have the version before and the entries that this one folded.
        """
        if not self.tally.take():
            return
        key = published_manifest(self.region.id, version)
        found = self.region.context.objects.get(key)
        named = self.region.context.objects.get(head.manifest_key) if version == head.manifest_version else None
        if found is None:
            # Below a hint that was raised meanwhile a version may be swept, also while the head stays.
            passed = (self._read_hint()[0] or 0) > version
            problem = "it is gone: Lance's readers stop before it" if promised and not passed else ""
        elif named is not None and found.body != named.body:
            problem = "it is not the one that the head names"
            self._suspect(head.manifest_key, ObjectKind.STAGED, "it is not what was published", head)
        else:
            try:
                manifest = manifests.decode(found.body, key=key)
                right = (manifest.region, manifest.version) == (self.region.id, version)
                problem = "" if right else f"it is version {manifest.version} of region {manifest.region}"
            except (Corrupt, Invalid) as error:
                problem = problem_of(error)
        if problem:
            self._suspect(key, ObjectKind.PUBLISHED, problem, head)

    def _suspect(self, path: str, kind: ObjectKind, problem: str, head: Head) -> None:
        """What later manifests explain: they are published after a head names them."""
        version = head.manifest_version
        self.suspects.add(path, kind, problem, still=lambda later, _: later.manifest_version == version)
