"""Find the regions of some keys, for a read of these keys and for its token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from lancelsm.common.layout import RegionValues, TableId
from lancelsm.read.transact.read_token import encode_token, point_of
from lancelsm.read.view import View
from lancelsm.region.catalog import Region
from lancelsm.region.handle import WriteTarget
from lancelsm.routing.route import route
from lancelsm.routing.spec import RegionSpec


class KeyRegions:
    """The regions of some keys.

    Args:
        keys: the key columns.
        target: has the region spec that gives the regions.
    """

    def __init__(self, keys: pa.Table, target: WriteTarget) -> None:
        self._keys = keys
        self._target = target

    @property
    def spec(self) -> RegionSpec:
        """The region spec that gives the regions."""
        return self._target.regions

    @cached_property
    def _values(self) -> list[RegionValues]:
        return [part.values for part in route(self._keys, self._target.regions)]

    def existing(self) -> list[Region]:
        """Return those that exist. Lists the catalog, once, only for regions that this process does not know."""
        return self._target.directory.find_all(self._values)

    def select(self, every: Sequence[Region]) -> list[Region]:
        """Pick them out of all regions of the catalog."""
        spec_id, values = self._target.regions.spec_id, set(self._values)
        return [one for one in every if one.spec_id == spec_id and one.values in values]

    def token(self, view: View, *, table: TableId) -> str:
        """Return the token of a read of the keys from a view. A region that the view lacks had no entry."""
        directory, ends = self._target.directory, {one.region: one.end for one in view.regions}
        known = {region.values: region for region in directory.find_all(self._values)}
        ids = [(known.get(values) or directory.named(values)).id for values in self._values]
        return encode_token(table, {one: point_of(ends.get(one)) for one in ids})
