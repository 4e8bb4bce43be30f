"""Read the state of the event source mapping that passes messages of the write queue to `writer_flush`."""

from __future__ import annotations

from typing import Any

from lancelsm.common import aws

_DELIVERING = frozenset({"Creating", "Enabled", "Enabling", "Updating"})
UNKNOWN = "Unknown"


def is_delivering(state: str) -> bool:
    """Return whether messages are delivered, or will be soon, in this state of a mapping."""
    return state in _DELIVERING


def mapping_state(identity: str, *, client: Any = None) -> str:
    """Return the state of a mapping, as AWS names it, such as Enabled or Disabled; Unknown if it can't be read."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    try:
        found = (client or aws.client("lambda")).get_event_source_mapping(UUID=identity)
    except (BotoCoreError, ClientError):
        return UNKNOWN
    return str(found["State"])
