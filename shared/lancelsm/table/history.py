"""The methods of a table that keep and read its past: versions, snapshots, the change stream and its cursors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from lancelsm.common.argument_checks import checked
from lancelsm.common.duration import time_to_live
from lancelsm.errors import Invalid, error_context
from lancelsm.history.at import At
from lancelsm.history.changes import Changes
from lancelsm.history.cursor import drop_cursor, list_cursors, set_cursor
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import (
    create_snapshot,
    drop_snapshot,
    holding_snapshot,
    list_snapshots,
    refresh_snapshot,
)
from lancelsm.history.stream_start import Start, check_start, first_position
from lancelsm.table.open_table import OpenTable

if TYPE_CHECKING:  # it loads Lance
    from lancelsm.dataset.versions import BaseVersion
    from lancelsm.history.restore import Restored


class TableHistory(OpenTable):
    """Versions, snapshots, the change stream, and its cursors."""

    @checked
    def history(self, *, limit: int = 20) -> list[BaseVersion]:
        """List the newest versions of the base, oldest first: commit time, Lance's operation, rows, what was merged.

        Args:
            limit: how many versions; each costs a few reads.

        Raises:
            Invalid: `limit` is below 1.
            Corrupt, Unavailable: a version can't be read.
        """
        from lancelsm.dataset.versions import base_versions  # noqa: PLC0415 - Lance is slow

        with error_context(table=self.uri):
            if limit < 1:
                raise Invalid(f"the limit is {limit}", remedy="Give 1 or more", field="limit")
            return base_versions(uri=self.uri, newest=limit, storage_options=self._handle.storage_options)

    @checked
    def restore(self, at: At) -> Restored:
        """Give the table the rows that it had at a snapshot, at a version or at a time, in place.

        The rows as of now are compared with those of that state. The difference is appended as upserts and deletes, in
        chunks, so readers see some of it first, and the change stream has all of it. What other writers write after
        the comparison stays, also if the call is interrupted: within a day, the same call continues with the same
        comparison. Call it again for a new one.

        If columns have changed since, rows of that state are converted, as older rows are when they are read: a column
        that was added has its default, and what a column had that was dropped is lost.

        Both states are read as a whole, the present one twice. In memory are hashes of 8 million rows at a time, and
        the keys that are written meanwhile.

        Args:
            at: the name of a snapshot, the version of the base as an integer, or a time such as
                `2026-11-01T00:00:00Z`. A version lacks rows that were not merged yet at its commit: they are deleted.

        Returns:
            The number of rows written, keys deleted, and rows left since they were written after the comparison.

        Raises:
            Invalid: the snapshot is not found or has expired; the version was collected or does not exist; or the
                version of that time is not known. Or the columns were replaced by another tool since, the table takes
                no rows, or it was dropped. A later call compares again.
            Contended: other writers were faster until the retry budget was spent, the log was collected past the
                comparison, or another call finished this restore. Call it again.
            Fenced: another owner holds a region.
            Ambiguous, Unavailable: a store or the registry did not answer. Call it again to continue.
            Corrupt: an object of the table is missing or damaged.
        """
        from lancelsm.history.restore import restore_in_place  # noqa: PLC0415 - Lance is slow

        self._check_writable()
        with error_context(table=self.uri):
            return self._with_columns(lambda: restore_in_place(self._handle, at, self._append), partly_done=None)

    @checked
    def snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Keep the table as it is now under a name. All rows acknowledged before the call are included.

        While the snapshot exists, the log written after it and the generations made of that log are kept too.

        Args:
            name: up to 100 letters, digits, `-` and `_`.
            ttl: time to live unless it is refreshed: seconds, text such as `15m`, `1h`, `7d`, or `never`; by default
                the setting `snapshot_ttl_seconds`.

        Raises:
            Invalid: the name is taken or not valid, or reads as a version or a time, or begins with
                `lancelsm-`.
            Contended: collections overtook the snapshot several times; it does not exist.
            Corrupt: an object that the snapshot needs is missing or damaged.
            Unavailable: a store or the registry did not answer; the snapshot may exist.
        """
        self._check_writable()
        return create_snapshot(self._handle, name, ttl_seconds=self._time_to_live(ttl))

    @checked
    def snapshots(self) -> list[Pin]:
        """List every snapshot by name, including expired ones that no collection has removed yet."""
        return list_snapshots(self._context)

    @checked
    def refresh_snapshot(self, name: str, ttl: str | float | None = None) -> Pin:
        """Let a snapshot expire `ttl` from now.

        Raises:
            Invalid: snapshot not found; it may have been dropped or have expired.
            Contended, Unavailable: the snapshot was not refreshed. Retry before it expires.
        """
        self._check_writable()
        return refresh_snapshot(self._handle, name, ttl_seconds=self._time_to_live(ttl))

    @checked
    def drop_snapshot(self, name: str) -> None:
        """Drop a snapshot. The next collection may delete what only the snapshot kept.

        Raises:
            Invalid: snapshot not found, or it keeps the files of a clone; or the clone's location can't be read.
            Corrupt: what the clone records about its source is unreadable.
            Contended, Unavailable: the snapshot may still exist. Retry.
        """
        self._check_writable()
        drop_snapshot(self._handle, name)

    @checked
    @contextmanager
    def holding_snapshot(self, name: str, ttl: str | float | None = None) -> Iterator[Self]:
        """Create a snapshot, refresh it in the `with` block, and drop it at the end. Yield the table at the snapshot.

        Raises:
            Invalid: the name is taken or not valid, or `ttl` is `never`; at the end also: the snapshot was lost.
            Contended: collections overtook the snapshot several times; it does not exist.
            Corrupt: an object that the snapshot needs is missing or damaged.
            Unavailable: a store or the registry did not answer; the snapshot may exist until it expires.
        """
        self._check_writable()
        seconds = self._time_to_live(ttl)
        if seconds is None:
            raise Invalid("a held snapshot needs a time to live", remedy="Give seconds, or text such as 15m or 1h")
        with holding_snapshot(self._handle, name, ttl_seconds=seconds) as pin:
            yield type(self)(self._handle, owner=self._owner, at=pin)

    @checked
    def changes(
        self,
        *,
        cursor: str | None = None,
        start: Start = "earliest",
        region_ids: Iterable[str] | None = None,
        follow: bool = False,
        limit: int | None = None,
    ) -> Changes:
        """Stream every committed upsert and delete, in commit order within each region.

        Rows that the table was created with are only in the base; they do not appear in the stream.

        Args:
            cursor: continue where the cursor of this name was last saved. If there is no such cursor, create it at
                `start`. A cursor keeps everything that it has not passed from being collected. Save it with
                `Changes.save`.
            start: `earliest` (the oldest kept entry), `latest`, a position, Unix seconds as a float, or the next
                position of each region of this table (`Changes.positions`). Only the last form overrides an existing
                cursor.
            region_ids: the regions to read; all by default.
            follow: True: wait for more entries and never end. False: end after the entries that existed at the start.
            limit: end after the entry that reaches this many rows.

        Raises:
            Invalid: unknown region, `start` is not valid or holds positions of another table, or `limit` is below 1.
                While reading: `start` was collected or is past the end of the log.
            Corrupt: while reading: an object is missing or damaged.
            Unavailable: a store or the registry did not answer.
        """
        self._check_writable()
        only = None if region_ids is None else [self.region(one).id for one in region_ids]
        return Changes(self._context, self._schema, start=start, cursor=cursor, only=only, follow=follow, limit=limit)

    @checked
    def cursors(self) -> list[Pin]:
        """List every cursor by name."""
        return list_cursors(self._context)

    @checked
    def set_cursor(self, name: str, *, start: Start = "earliest", region: str | None = None) -> Pin:
        """Create a cursor, or move it forward or back, in all regions or in one.

        Args:
            start: `earliest` (the oldest kept entry), `latest`, a position, Unix seconds as a float, or the next
                position of each region of this table (`Changes.positions`).
            region: move only this region, given by its id; the cursor must exist and stays where it is in the others.

        Raises:
            Invalid: unknown region, cursor not found, or `start` is not valid or was collected. Nothing changed.
            Contended: collections overtook the change several times, or another process moved the cursor.
            Corrupt: a record of the registry is damaged.
            Unavailable: the registry did not answer; the cursor may have moved.
        """
        self._check_writable()
        check_start(self._context, start)
        only = None if region is None else self.region(region).id
        return set_cursor(self._context, name, start=lambda one, head: first_position(one, head, start), only=only)

    @checked
    def drop_cursor(self, name: str) -> None:
        """Drop a cursor. What only the cursor kept may be collected.

        Raises:
            Invalid: cursor not found.
            Contended, Unavailable: the cursor may still exist. Retry.
        """
        self._check_writable()
        drop_cursor(self._context, name)

    # Private

    def _time_to_live(self, ttl: str | float | None) -> float | None:
        with error_context(table=self.uri):
            return time_to_live(self.settings.snapshot_ttl_seconds if ttl is None else ttl)
