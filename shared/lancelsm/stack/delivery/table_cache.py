"""What a container keeps between calls for several tables: their configurations for a minute, and the inbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.open import open_store
from lancelsm.region import config as configs
from lancelsm.region.handle import Ports, TableHandle, open_configured
from lancelsm.stack.function import table_uri

_SECONDS = 60.0

T = TypeVar("T")


class Tables:
    """Tables below one root, opened by configuration alone, without Lance.

    A configuration is read again after a minute.
    """

    def __init__(
        self, root: str, *, storage_options: Mapping[str, str] | None = None, ports: Ports | None = None
    ) -> None:
        self._root = root
        self._options = storage_options
        self.ports = ports or Ports()
        self._handles: dict[str, tuple[TableHandle, float]] = {}

    def open(self, table: str, *, fresh: bool = False) -> TableHandle:
        """Open a table by name or URI.

        Raises: the same errors as `open_configured`, and `Invalid` if it is not below the root.
        """
        uri = table_uri(table, root=self._root)
        now = self.ports.clock.monotonic()
        kept = self._handles.get(uri)
        if kept is None or fresh or now - kept[1] > _SECONDS:
            kept = open_configured(uri, storage_options=self._options, ports=self.ports), now
            self._handles[uri] = kept
        return kept[0]

    def converted(self, table: str, convert: Callable[[TableHandle], T]) -> tuple[TableHandle, T]:
        """Open a table and convert rows for it; if they don't fit, once more for its columns as they are now.

        Raises: the same errors as `open` and `convert`.
        """
        handle = self.open(table)
        try:
            return handle, convert(handle)
        except Invalid:
            now = self.open(table, fresh=True)
            if now.config.schema.version == handle.config.schema.version:
                raise
            return now, convert(now)

    def find(self, table: str, *, fresh: bool = False) -> TableHandle | None:
        """Open a table like `open`, but return None if there is no table at its location.

        Raises `Invalid` for a table that is not below the root: it may belong to another deployment, so nothing is
        known about it.
        """
        uri = table_uri(table, root=self._root)
        try:
            return self.open(uri, fresh=fresh)
        except Invalid:
            if configs.read(self.ports.store(uri, self._options), uri=uri) is None:
                self._handles.pop(uri, None)
                return None
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Objects beside the queue, for rows that are too big for a message. They expire like messages."""

    uri: str
    store: ObjectStore

    @classmethod
    def below(cls, work: str) -> Inbox:
        """Return the inbox of a deployment, given the URI of its `work` prefix. Sends no request."""
        uri = f"{work.rstrip('/')}/inbox"
        return cls(uri=uri, store=open_store(uri))

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None if it does not exist."""
        found = self.store.get(key)
        return None if found is None else found.body

    def put(self, key: str, body: bytes) -> None:
        """Write an object whose key determines its content. An existing object has the same content."""
        if put_once(self.store, key, body, attempts=range(2)) is None:
            raise Unavailable("the inbox gave no reply", object=key)
