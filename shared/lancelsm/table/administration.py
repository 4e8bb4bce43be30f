"""The methods of a table that show and change its regions."""

from __future__ import annotations

from lancelsm.common.checked import checked
from lancelsm.read.status import TableStatus, full_status
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.table.open_table import OpenTable
from lancelsm.wal.claim import claim, seal


class TableAdministration(OpenTable):
    """The state of the table, and the owners of its regions."""

    @checked
    def status(self) -> TableStatus:
        """Read heads, lag and counters of every region, the progress of every index, and what other tools did.

        Raises:
            Corrupt: a head or the manifest that it names is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        return full_status(self._handle)

    @checked
    def claim(self, region: Region, *, owner: str | None = None) -> Head:
        """Take a region for `owner`, by default for the table's ordinary writers. The previous owner is fenced.

        Raises:
            Invalid: the region is sealed, or `owner` is not a valid name.
            Fenced: another claim came right after this one.
            Corrupt: the log of the region is damaged. The region was not claimed.
            Contended, Unavailable, Ambiguous: the claim may be incomplete. Claim again.
        """
        self._check_writable()
        return claim(region, owner=owner or self.config.owner)

    @checked
    def seal(self, region: Region) -> Head:
        """End a region for writes, permanently. Flush, merge and collection of the region continue to work.

        Raises:
            Contended, Unavailable, Ambiguous: the region may be sealed. Seal it again, which finishes it.
        """
        self._check_writable()
        return seal(region)
