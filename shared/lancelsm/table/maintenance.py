"""The methods of a table that do its maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancelsm.common.argument_checks import checked
from lancelsm.compaction.runner import Engine
from lancelsm.errors import error_context
from lancelsm.read.index_status import IndexStatus
from lancelsm.table.open_table import OpenTable

if TYPE_CHECKING:  # a process that only reads or writes rows does not load these
    from lancelsm.compaction.background import Ran
    from lancelsm.compaction.compact import CompactedGeneration
    from lancelsm.compaction.maintenance import Flushed
    from lancelsm.compaction.merge import Merged
    from lancelsm.compaction.optimize import Optimized
    from lancelsm.gc.collect import Collected
    from lancelsm.scrubbing.report import Report


class TableMaintenance(OpenTable):
    """Flush, compact, merge, indexes, collection and scrub."""

    @checked
    def flush(self) -> list[Flushed]:
        """Flush the log of every region into generations: all rows acknowledged before the call leave the log.

        Raises:
            Corrupt: the log is not what was committed, or the written rows read back differently. Nothing of that
                region was committed.
            Contended, Ambiguous, Unavailable: retry; rows that are already flushed are not flushed again.
        """
        self._check_writable()
        from lancelsm.compaction.maintenance import flush_table  # noqa: PLC0415

        return flush_table(self._handle)

    @checked
    def compact(self) -> list[CompactedGeneration]:
        """Replace generations by fewer ones until no region has more than `max_generations` that are not merged.

        This keeps reads fast while merges are rare. The base does not change. A generation that replaces others has the
        newest row of each of their keys, deletes included.

        Returns:
            The generations that were written; empty if no region had more.

        Raises:
            Corrupt: a generation is missing or damaged, or the new one reads back differently. It was not committed.
            Contended, Ambiguous, Unavailable: retry; what is already compacted is not compacted again.
        """
        self._check_writable()
        from lancelsm.compaction.compact import compact_table  # noqa: PLC0415

        return compact_table(self._handle)

    @checked
    def merge(self, *, engine: Engine = "auto") -> Merged:
        """Merge all generations into the base.

        Args:
            engine: where the merge runs; `auto` decides by the sizes of delta and base.

        Raises:
            Invalid: unknown engine; or another tool changed the base: the error names a version to restore.
            Contended: another process merges or optimizes the table, or keeps changing the base. Retry.
            Ambiguous: the commit may have happened. Merge again: generations are not merged twice.
            Unavailable: a store did not answer; nothing was committed. Retry.
            Corrupt: the base belongs to another table, or a generation is missing or damaged.
        """
        self._check_writable()
        from lancelsm.compaction.maintenance import merge_table  # noqa: PLC0415

        return merge_table(self._handle, engine=engine)

    @checked
    def optimize(self) -> Optimized:
        """Rewrite fragments of the base if that is due, hide expired rows in it, and update its indexes.

        `run` does it after each merge.

        Returns:
            What was rewritten, and how many rows had expired; `left` is True if more remains to be done.

        Raises:
            Corrupt: the base, a head, a manifest or a generation is missing or damaged.
            Contended: another process merges or optimizes the table. The indexes may be up to date.
            Unavailable: a store or the registry did not answer.
        """
        self._check_writable()
        from lancelsm.compaction.maintenance import optimize_table  # noqa: PLC0415

        return optimize_table(self._handle)

    @checked
    def run(self, *, until_idle: bool = True, engine: Engine = "auto") -> Ran:
        """Flush and merge the table, and optimize its base after a merge. Compact generations while no merge is due.

        Args:
            until_idle: True: do everything that can be done, due or not, then return. Rows that are written meanwhile
                may wait for the next call. False: do what is due by the table's settings, and never return.
            engine: where merges run: `inprocess`, `spark`, or `auto`, which decides by the sizes of delta and base.

        Raises:
            Invalid: another tool changed the base: the error names a version to restore.
            Corrupt: a region or the base is damaged.
            Contended, Ambiguous, Unavailable: only with `until_idle`; otherwise the step is tried again later.
        """
        self._check_writable()
        from lancelsm.compaction.background import run  # noqa: PLC0415

        return run(self._handle, until_idle=until_idle, engine=engine)

    @checked
    def create_index(
        self, column: str, *, kind: str, name: str | None = None, replace: bool = False, **options: object
    ) -> IndexStatus:
        """Create an index on a column, and maintain it: every flush builds it for its rows too.

        Searches find all rows at any time; an index makes them fast. Generations get an index for vectors, INVERTED and
        BTREE; an index of another kind is on the base alone. When the call returns, every row is indexed, and Lance's
        own readers may rely on it; but `rows_without` of the result counts rows that Lance can't index.

        Args:
            kind: as Lance names it: IVF_FLAT, IVF_SQ, IVF_PQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ, IVF_HNSW_PQ for
                vectors, INVERTED for text, BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP or BLOOMFILTER for conditions.
            name: by default the name of the column and `_idx`.
            replace: replace an index of this name. Without it such an index is `Invalid`.
            options: Lance's options for this kind, such as `metric`, `num_partitions` or `with_position`. For PQ,
                `num_sub_vectors` is the length of the vectors divided by 16 or by 8, else 1, unless it is given.

        Raises:
            Invalid: unknown column, an unknown kind or option, one that Lance refuses for it, or the name is taken.
            Contended: another process maintains the indexes, or other processes kept changing the base.
            Corrupt: a head, a manifest, a generation or the base is missing or damaged.
            Unavailable: a store or the registry did not answer.

        After an error or a crash the index may exist on the base alone. The command `lancelsm optimize`, or the same
        call with `replace`, finishes it.
        """
        self._check_writable()
        from lancelsm.compaction.indexes import create_index  # noqa: PLC0415

        return create_index(self._handle, column, kind=kind, name=name, replace_existing=replace, options=options)

    @checked
    def drop_index(self, name: str) -> None:
        """Drop an index. Files of the index in generations stay until the generations are collected.

        Raises:
            Invalid: the table has no such index.
            Corrupt: a head, a manifest, a generation or the base is missing or damaged.
            Contended, Unavailable: the index may still exist, and may no longer be maintained. Drop it again.
        """
        self._check_writable()
        from lancelsm.compaction.indexes import drop_index  # noqa: PLC0415

        drop_index(self._handle, name)

    @checked
    def list_indices(self) -> list[IndexStatus]:
        """List the indexes by name, with the rows that a search reads without them.

        Raises:
            Corrupt: a head, a manifest or the base is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        from lancelsm.compaction.indexes import index_statuses  # noqa: PLC0415

        with error_context(table=self.uri):
            return index_statuses(self._handle)

    @checked
    def collect(self, *, yes: bool = False, interval_seconds: float | None = None) -> Collected:
        """Delete objects that are no longer needed. By default only list them, with what is kept and why.

        Args:
            yes: False: a dry run, nothing is written or deleted.
            interval_seconds: the time between a round's commit and its sweep, for reads that began before the commit;
                by default the table's setting. A committed round whose interval is over is swept now. A round that was
                committed just now is left to a later call, unless the interval is 0.

        Raises:
            Invalid: the interval is below 0, or the table was dropped.
            Corrupt: an object is missing or damaged; the error names it. Nothing of that region was deleted; other
                regions were collected.
            Contended, Ambiguous, Unavailable: run it again; it continues where this call stopped.
        """
        from lancelsm.gc.collect import collect  # noqa: PLC0415

        self._check_writable()
        with error_context(table=self.uri):
            return collect(self._handle, yes=yes, interval_seconds=interval_seconds)

    @checked
    def scrub(self, *, region: str | None = None, limit: int | None = None) -> Report:
        """Read everything that the table consists of and name every damaged object. At a snapshot: what it needs.

        Args:
            region: check only this region, given by its id or the start of it; the rows of the base are not checked.
            limit: read at most this many objects, besides registry records and the manifests that they name.

        Raises:
            Invalid: region or snapshot not found, a limit below 1, or the table was dropped.
            Unavailable: a store or the registry did not answer.
        """
        from lancelsm.scrubbing.table import scrub  # noqa: PLC0415

        with error_context(table=self.uri):
            return scrub(self._handle, region=region, at=self.at_snapshot, limit=limit)
