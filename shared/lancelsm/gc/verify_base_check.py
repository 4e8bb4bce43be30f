"""Verify the check of the base on which a collection relies, with code of its own.

The check (`gc.base_check`) is recorded before rounds are marked. Here the record is decoded again. The statement and
manifest that it names are summed again, as is each file that no earlier verification has read. Only functions that read
storage are shared: the files that a version names, and the bytes of a file. `base_verified` records which version was
verified; it only saves reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from google.protobuf.message import DecodeError

from lancelsm.common.layout import table_key
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.statement import NamedFile, file_pieces, files_of
from lancelsm.errors import Contended, Corrupt
from lancelsm.gc.base_check import exists
from lancelsm.generated.lancelsm.v1.files_pb2 import StatedFile
from lancelsm.generated.lancelsm.v1.files_pb2 import Statement as StatementMessage
from lancelsm.objects.open import open_store
from lancelsm.region.base_checked import Checked, checked_of
from lancelsm.region.handle import TableHandle

VERIFIED = "base_verified"  # in the table's catalog record: the version whose files were all verified
_RECORD = re.compile(r"([0-9]+) (_lancelsm/files/[0-9]+-([0-9a-f]{32})\.binpb) ([0-9a-f]{32})")
_BYTES_AT_ONCE = 16 << 30  # as much as a check reads
_REMEDY = "Nothing was deleted. Restore it from a copy of the bucket; lancelsm scrub names every wrong file"


def verified_check(handle: TableHandle) -> Checked | None:
    """Verify the last check of the base, and return it. None if there is none, or if its version is gone.

    Raises:
        Corrupt: statement, manifest or a file is not the one that was checked. The error names it.
        Contended: another collection checked the base meanwhile.
        Unavailable: the store or the registry did not answer.
    """
    context, key = handle.context, table_key(handle.context.table)
    record = context.registry.read(key) or {}
    text = str(record.get("base_checked", ""))
    found = _RECORD.fullmatch(text)
    if found is None or (version := int(found[1])) == 0:
        return None
    try:
        base = open_base(uri=context.uri, version=version, storage_options=handle.storage_options)
    except VersionGone:
        return None
    verification = _Verification(handle=handle, base=base)
    try:
        verification.manifest(found[4])
        complete = verification.files(found[2], found[3], known=_names(handle, record.get(VERIFIED)))
    except Corrupt as error:
        if str((context.registry.read(key) or {}).get("base_checked", "")) != text:
            what = "another collection checked the base meanwhile"
            raise Contended(what, table=context.uri) from error
        if not exists(base):  # it was removed meanwhile, with files that only it names
            return None
        raise
    if complete and record.get(VERIFIED) != version:
        expect = {name: record.get(name) for name in ("base_checked", VERIFIED)}
        context.registry.swap(key, expect=expect, change={VERIFIED: version})  # if it is lost, files are read again
    return checked_of(record)


def _names(handle: TableHandle, version: object) -> frozenset[str]:
    """Return the paths of the files of a version that was verified before; empty if it is gone."""
    if not isinstance(version, int):
        return frozenset()
    try:
        before = open_base(uri=handle.context.uri, version=version, storage_options=handle.storage_options)
    except VersionGone:
        return frozenset()
    return frozenset(one.path for one in files_of(before))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    handle: TableHandle
    base: BaseTable

    def manifest(self, expected: str) -> None:
        """Compare the manifest of the version with the sum in the record."""
        version = self.base.version
        for path in (f"_versions/{2**64 - 1 - version:020}.manifest", f"_versions/{version}.manifest"):
            found = self.handle.context.objects.get(path)
            if found is not None:
                summed = Setsum.of_item(path.encode() + b"\0", found.body).hex()
                if summed != expected:  # guard: verifier sums the manifest of the checked base
                    self._refuse("the manifest of the base is not the one that was checked", path)
                return
        self._refuse("the manifest of the checked version of the base is gone", f"_versions/{version}.manifest")

    def files(self, key: str, expected: str, *, known: frozenset[str]) -> bool:
        """Compare the files of the version with the statement of the check. Sum those that are not `known`.

        Return whether all were summed: at most 16 GiB are read at once, and the check proves the rest.
        """
        lines, files = self._lines(key, expected), files_of(self.base)
        for named in files:
            line = lines.get(named.path)
            if line is None or line.rows != named.rows:  # guard: verifier knows each file of the checked base
                self._refuse("a file of the base is not in its check, or has another number of rows there", named.path)
        sizes: dict[str, Mapping[str, int]] = {}
        left = _BYTES_AT_ONCE
        new = lines.keys() - known
        for named in files:
            if named.path not in new:
                continue
            line = lines[named.path]
            left -= line.bytes
            if left < 0:
                continue
            if named.root not in sizes:
                sizes[named.root] = _sizes(self.handle, named.root)
            summed = self._sum(named, sizes[named.root])
            if summed.digest() != line.sum:  # guard: verifier sums the files of the base
                self._refuse("a file of the base is not the one that was checked", named.path)
        return left >= 0

    def _lines(self, key: str, expected: str) -> dict[str, StatedFile]:
        found = self.handle.context.objects.get(key)
        if found is None:
            self._refuse("the statement of the check is gone", key)
        if Setsum.of_item(found.body).hex() != expected:  # guard: verifier sums the statement of the check
            self._refuse("the statement of the check is not the one that was written", key)
        try:
            return {one.path: one for one in StatementMessage.FromString(found.body).files}
        except DecodeError:
            self._refuse("the statement of the check can't be decoded", key)

    def _sum(self, named: NamedFile, sizes: Mapping[str, int]) -> Setsum:
        """Sum a file, or each file in the directory of an index."""
        total = Setsum.ZERO
        for key in [named.key] if named.key in sizes else [one for one in sizes if one.startswith(f"{named.key}/")]:
            pieces = file_pieces(named.root, key, sizes[key], options=self.handle.storage_options)
            total += Setsum.of_pieces(pieces)
        return total

    def _refuse(self, what: str, path: str) -> NoReturn:
        raise Corrupt(what, remedy=_REMEDY, table=self.base.uri, version=self.base.version, object=path)


def _sizes(handle: TableHandle, root: str) -> Mapping[str, int]:
    objects = open_store(root, handle.storage_options)
    return {one.key: one.size for folder in ("data/", "_deletions/", "_indices/") for one in objects.list(folder)}
