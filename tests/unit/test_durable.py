"""Local files are made durable, or an error says why that failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lancelsm.dataset import durable
from lancelsm.dataset.durable import make_durable
from lancelsm.errors import Corrupt, LsmError, Unavailable


def failing(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(path: str) -> None:
        raise error

    monkeypatch.setattr(durable, "_sync", sync)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOENT, Corrupt), (errno.EIO, Unavailable), (errno.ENOSPC, Unavailable)]
)
def test_a_failed_sync_becomes_an_error_of_lancelsm(
    number: int, kind: type[LsmError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    failing(OSError(number, os.strerror(number), str(tmp_path / "file")), monkeypatch)

    with pytest.raises(kind, match="durable"):
        make_durable(str(tmp_path))
