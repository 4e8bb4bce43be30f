"""Local files are durable, or somebody is told why not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lancelsm.dataset import durable
from lancelsm.dataset.durable import make_durable
from lancelsm.errors import Corrupt, LsmError, Unavailable


def failing(kind: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(path: str) -> None:
        raise kind

    monkeypatch.setattr(durable, "_sync", sync)


@pytest.mark.parametrize(
    ("number", "raised"), [(errno.ENOENT, Corrupt), (errno.EIO, Unavailable), (errno.ENOSPC, Unavailable)]
)
def test_what_keeps_files_from_being_durable_is_told_as_one_of_our_errors(
    number: int, raised: type[LsmError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    failing(OSError(number, os.strerror(number), str(tmp_path / "file")), monkeypatch)

    with pytest.raises(raised, match="durable"):
        make_durable(str(tmp_path))
