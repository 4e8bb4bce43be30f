"""Write rows and delete keys with the configuration of a table alone, without its base and without Lance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancelsm.common.write_result import Committed
from lancelsm.record.normalize import deletes, upserts
from lancelsm.region.handle import Ports, TableHandle, open_configured
from lancelsm.wal.region_writer import RegionWriters


class LogWriter:
    """Write to the logs of a table. The next flush compares the configuration with the base before it uses the rows."""

    def __init__(self, handle: TableHandle) -> None:
        self.handle = handle
        self._target = handle.target()
        self._writers = RegionWriters(self._target, owner=self._target.owner)

    def upsert(self, data: Any) -> Committed:
        """Write whole rows. Arguments, result and errors are those of `Table.upsert`."""
        return self._writers.append_all(upserts(data, schema=self._target.schema))

    def delete(self, keys: Any) -> Committed:
        """Delete rows by key. Arguments, result and errors are those of `Table.delete`."""
        return self._writers.append_all(deletes(keys, schema=self._target.schema))


def open_log(
    uri: str,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> LogWriter:
    """Open a table for writing. Raises the same errors as `region.handle.open_configured`, and `TableHandle.target`."""
    return LogWriter(open_configured(uri, settings=settings, storage_options=storage_options, ports=ports or Ports()))
