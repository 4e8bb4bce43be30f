"""The methods of a table that show its state, and change its regions and how long its rows live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lancelsm.common.argument_checks import checked
from lancelsm.read.status import TableStatus, full_status
from lancelsm.region.catalog import Region
from lancelsm.region.head import Head
from lancelsm.table.open_table import OpenTable
from lancelsm.wal.claim import claim, seal

if TYPE_CHECKING:  # a process that only reads or writes rows does not load these
    from lancelsm.admin.clone import Copied
    from lancelsm.admin.reshard import Resharded


class TableAdministration(OpenTable):
    """The state of the table, the owners of its regions, and how long its rows live."""

    @checked
    def status(self) -> TableStatus:
        """Read heads, lag and counters of every region, the progress of every index, and what other tools did.

        Raises:
            Corrupt: a head or the manifest that it names is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        return full_status(self._handle)

    @checked
    def clone(self, snapshot: str, to: str | Path, *, registry: str | None = None) -> Copied:
        """Create a new table from a snapshot without copying the files of its base.

        Args:
            snapshot: the name of a snapshot. While the clone exists, the snapshot keeps the files that they share.
            to: a path or URL. The clone must be able to read this table's files with the same storage options.
            registry: the registry of the clone; by default as for a new table.

        Raises:
            Invalid: snapshot not found, or it was dropped or expired before the clone was complete; or something else
                exists at `to`.
            Corrupt: an object that the snapshot needs is missing, or the clone does not have the rows of the snapshot.
            Contended, Ambiguous, Unavailable: clone again.

        A crash at any line leaves no table at `to`. The same call continues where it stopped.
        """
        from lancelsm.admin.clone import clone_snapshot  # noqa: PLC0415

        return clone_snapshot(self._handle, snapshot, to, registry=registry)

    @checked
    def set_ttl(self, ttl: str | None) -> None:
        """Set how long rows live, or remove that. It holds for every read and merge that begins after the call.

        A row expires when the time in its column plus the duration has come. From then on no read shows it: it counts
        as a delete of its key, so it hides older rows of the key, and a newer row of the key is visible again. Expiry
        makes no change event. A merge or `optimize` removes expired rows some minutes later
        (`skew_allowance_seconds`); until then Lance's own readers see them, and a longer time to live brings them back.

        Args:
            ttl: `DURATION on COLUMN`, such as `7d on created_at`; `0s on expires_at` if the column has the end of life.
                The column has timestamps of any unit, with or without a zone, or dates. Times without a zone are in
                UTC; a row with null never expires. None: rows don't expire.

        Raises:
            Invalid: the text is not valid, or the column has no times.
            Contended, Unavailable: it may not be set. Call it again.
            Corrupt: the base belongs to another table, or can't be read.
        """
        from lancelsm.admin.set_ttl import set_ttl  # noqa: PLC0415 - loads Lance

        self._check_writable()
        set_ttl(self._handle, ttl)

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
    def reshard(self, regions: str | None = None) -> Resharded:
        """Give the table another region spec while writers and readers go on.

        It flushes and merges until little is left. Then it seals all regions, merges the rest, and opens the new ones.
        A write waits for this last round within its retry budget, then gets `Contended`. Writers and readers that have
        the table open find the new regions by themselves. Snapshots keep their regions, and a change stream yields the
        old regions to their end before a new one.

        Args:
            regions: the new region spec, as in `lancelsm.create`; None: only finish a reshard that was interrupted.

        Returns:
            The region spec, and how many regions were sealed and opened. Without a difference nothing is done.

        Raises:
            Invalid: the spec is not valid for the key, no reshard was interrupted, or another tool changed the base.
            Contended: another process reshards or merges the table, or keeps changing the base. Call it again.
            Corrupt: a log or the base is damaged.
            Ambiguous, Unavailable: a store or the registry did not answer. Call it again.

        After an error or a crash at any line, the next call finishes it; so does a writer that meets a sealed region.
        """
        from lancelsm.admin.reshard import reshard  # noqa: PLC0415 - a process that only writes rows does not load it

        self._check_writable()
        handle, done = reshard(self._handle, regions)
        if handle.config.regions is not None:
            self._take_regions(handle.config.regions)
        return done

    @checked
    def seal(self, region: Region) -> Head:
        """End a region for writes, permanently. Flush, merge and collection of the region continue to work.

        Raises:
            Contended, Unavailable, Ambiguous: the region may be sealed. Seal it again, which finishes it.
        """
        self._check_writable()
        return seal(region)
