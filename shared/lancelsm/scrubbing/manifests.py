"""Scrub the manifests of a region: those that a head or a pin names, and the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import Version, published_manifest, published_version, staged_version, version_hint
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import Listed
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.scrubbing.consistency import manifest_problems
from lancelsm.scrubbing.report import ObjectKind, Tally, head_path, problem_of
from lancelsm.scrubbing.suspects import Suspects, while_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestScrub:
    """Reads and checks the manifests of one region."""

    region: Region
    tally: Tally
    suspects: Suspects

    def named(self, key: str) -> Manifest | None:
        """Read the manifest that a head or a pin names. A problem counts only if a later head still names it."""
        self.tally.count()
        found = self.region.context.objects.get(key)
        problem, manifest = "it is gone", None
        if found is not None:
            try:
                manifest = manifest_codec.decode(found.body, key=key)
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
        """Check the hint, the published manifests from the hint on, as Lance's readers do, and unknown ones."""
        current, hint = head.manifest_version, self._check_hint(head)
        for number in range(hint, current + 1):
            self._published(head, Version(number), required=number < current or number == hint)
        versions = {version for found in listed if (version := published_version(found.key)) is not None}
        for version in sorted(versions):
            if version > current:
                key = published_manifest(self.region.id, version)
                self._suspect(key, ObjectKind.FOREIGN, "it is a version above that of the head", head)
                newer = f"it is older than the published version {version}"
                self._suspect(head_path(self.region), ObjectKind.HEAD, newer, head)

    def _check_hint(self, head: Head) -> int:
        """Check the hint. Return its version, or the newest version if the hint is wrong."""
        current, key = head.manifest_version, version_hint(self.region.id)
        self.tally.count()
        start, problem = self._read_hint()
        if start is not None and not 1 <= start <= current:
            problem = f"it is {start}, but the newest version is {current}"
        if problem:
            self._suspect(key, ObjectKind.HINT, problem, head)
        return current if problem or start is None else start

    def _read_hint(self) -> tuple[int | None, str]:
        """Return the version at which Lance's readers start, or the problem with the hint."""
        objects, first = self.region.context.objects, Version(1)
        hint = objects.get(version_hint(self.region.id))
        if hint is None:  # readers start at version 1: a crash may come before its hint
            exists = objects.get(published_manifest(self.region.id, first)) is not None
            return (first, "") if exists else (None, "it is gone")
        try:
            return int(parse_json(hint.body)["version"]), ""
        except (ValueError, KeyError, TypeError, OverflowError):
            return None, "it is unreadable"

    def _published(self, head: Head, version: Version, *, required: bool) -> None:
        """Check one published manifest.

        Args:
            required: whether it must exist, since a later version is committed or the hint names it. The newest
                version may be unpublished: its committer is about to publish it, or has crashed. The next committer
                publishes it first. Until then Lance's readers use the version before and its entries.
        """
        if not self.tally.reads(f"1/{version:020}"):
            return
        key = published_manifest(self.region.id, version)
        found = self.region.context.objects.get(key)
        named = self.region.context.objects.get(head.manifest_key) if version == head.manifest_version else None
        if found is None:
            # If the hint was raised meanwhile, a sweep may have deleted versions below it, even under the same head.
            passed = (self._read_hint()[0] or 0) > version
            problem = "it is gone: Lance's readers stop before it" if required and not passed else ""
        elif named is not None and found.body != named.body:
            problem = "it differs from the manifest that the head names"
            self._suspect(head.manifest_key, ObjectKind.STAGED, "it differs from the published manifest", head)
        else:
            try:
                manifest = manifest_codec.decode(found.body, key=key)
                matches = (manifest.region, manifest.version) == (self.region.id, version)
                problem = "" if matches else f"it is version {manifest.version} of region {manifest.region}"
            except (Corrupt, Invalid) as error:
                problem = problem_of(error)
        if problem:
            self._suspect(key, ObjectKind.PUBLISHED, problem, head)

    def _suspect(self, path: str, kind: ObjectKind, problem: str, head: Head) -> None:
        """Add a problem that counts only while the head names the same version."""
        version = head.manifest_version
        self.suspects.add(path, kind, problem, still=lambda later, _: later.manifest_version == version)
