"""What a scrub says of a table with which nothing is wrong, while others work on it and crash."""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.layout import RegionId, Version, published_manifest
from lancelsm.scrub.report import Kind, Problem
from lancelsm.table import Table


def wrongly_found(table: Table) -> Sequence[Problem]:
    """The problems, but for a newest manifest that is not published yet.

    Its committer may be about to do that, or has crashed, and whoever commits the next one does it first.
    """
    newest = {region.id: head.manifest_version for region in table.regions() if (head := region.find_head())}
    report = table.scrub()
    return [one for one in report.problems if not (one.kind is Kind.PUBLISHED and _unpublished(one, newest))]


def _unpublished(one: Problem, newest: dict[RegionId, Version]) -> bool:
    """Whether it is about the newest manifest of a region as the scrub began, or a later one."""
    return any(
        one.path == published_manifest(region, Version(version))
        for region, first in newest.items()
        for version in range(first, first + 100)
    )
