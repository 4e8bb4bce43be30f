"""Decode the last check of the base, a field of the table's catalog record."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import statement_version, table_key
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.region.handle import TableHandle
from lancelsm.registry import Record

CHECKED = "base_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the last check of the base found.

    Args:
        version: the version whose files were all checked; 0 if there is none yet.
        key: of the statement with the files that were checked.
        manifest: sum of the manifest of this version.
    """

    version: int
    key: str
    manifest: Setsum = Setsum.ZERO

    @property
    def text(self) -> str:
        return f"{self.version} {self.key} {self.manifest.hex()}"


def checked_of(record: Record) -> Checked | None:
    """Decode the last check in the table's catalog record; None if there was none, or if it can't be decoded."""
    version, _, rest = str(record.get(CHECKED, "")).partition(" ")
    key, _, manifest = rest.partition(" ")
    if not version.isdecimal() or statement_version(key) is None:
        return None
    try:
        return Checked(version=int(version), key=key, manifest=Setsum.from_hex(manifest))
    except Corrupt:
        return None


def read_checked(handle: TableHandle) -> Checked | None:
    """Read the last check from the catalog."""
    record = handle.context.registry.read(table_key(handle.context.table))
    return None if record is None else checked_of(record)
