"""A task of Spark forgets the finders of zip files, which its worker would ask before the next task."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from lancelsm.compaction.spark import _attempt
from lancelsm.errors import Corrupt, LsmError, Unavailable


def _fail(error: LsmError) -> None:
    raise error


@pytest.mark.parametrize("item", [Corrupt("broken"), Unavailable("down"), None])
def test_a_task_leaves_no_finder_of_a_zip_file_and_imports_work_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: LsmError | None
) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as modules:
        modules.writestr("module_in_a_zip_file.py", "number = 7")
    monkeypatch.setitem(sys.path_importer_cache, str(archive), zipimporter(str(archive)))
    monkeypatch.syspath_prepend(archive)

    if isinstance(item, Unavailable):
        with pytest.raises(Unavailable):
            _attempt(_fail, item)
    else:
        assert _attempt(_fail if item else bool, item) is (item or False)

    assert str(archive) not in sys.path_importer_cache
    assert importlib.import_module("module_in_a_zip_file").number == 7
    monkeypatch.delitem(sys.modules, "module_in_a_zip_file")
