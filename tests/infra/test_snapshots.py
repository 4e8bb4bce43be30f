"""The templates of both stacks equal their snapshots. A change of a stack renews the snapshot in the same commit:

    LANCELSM_SNAPSHOTS=write .venv/bin/python -m pytest tests/infra/test_snapshots.py

Left out is what every change of code changes: hashes of assets, and the order of grants, which depends on the hashes.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import Stacks, Template

SNAPSHOTS = Path(__file__).parent / "snapshots"
_HASH = re.compile(r"[0-9a-f]{64}|(?<=CurrentVersion[0-9A-F]{8})[0-9a-f]{32}")


def normalised(template: Template) -> Template:
    """Return a template without hashes of assets, metadata of the CDK and the rule for its bootstrap version."""
    kept = {name: template[name] for name in ("Description", "Resources", "Outputs") if name in template}
    return _ordered(json.loads(_HASH.sub("HASH", json.dumps(_without_metadata(kept), sort_keys=True))))


def _ordered(value: Any) -> Any:
    """Sort the resources of each grant by their text."""
    if isinstance(value, list):
        return [_ordered(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: sorted(one, key=json.dumps) if key == "Resource" and isinstance(one, list) else _ordered(one)
        for key, one in value.items()
    }


def _without_metadata(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_metadata(one) for key, one in value.items() if key != "Metadata"}
    return [_without_metadata(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["state", "pipeline"])
def test_a_stack_equals_its_snapshot(name: str, stacks: Stacks) -> None:
    now = normalised(getattr(stacks, name))
    file = SNAPSHOTS / f"{stacks.stage}-{name}.json"
    if os.environ.get("LANCELSM_SNAPSHOTS") == "write":
        file.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")

    assert now == json.loads(file.read_text()), f"renew {file.name} if the change is intended"
