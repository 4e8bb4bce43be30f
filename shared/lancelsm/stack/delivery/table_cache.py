"""What a container that works for several tables keeps of them: their configuration for a minute, and the inbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lancelsm.errors import Invalid, Unavailable
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.open import open_store
from lancelsm.region import config as configs
from lancelsm.region.handle import Ports, TableHandle, open_configured
from lancelsm.stack.function import place

_SECONDS = 60.0


class Tables:
    """Tables below one root, opened from their configuration alone, read again when it is older than a minute."""

    def __init__(
        self, root: str, *, storage_options: Mapping[str, str] | None = None, ports: Ports | None = None
    ) -> None:
        self._root = root
        self._options = storage_options
        self.ports = ports or Ports()
        self._opened: dict[str, tuple[TableHandle, float]] = {}

    def open(self, table: str, *, fresh: bool = False) -> TableHandle:
        """A table by name or URI; raises as `open_configured`, and `Invalid` if it is not below the root."""
        uri = place(table, root=self._root)
        now = self.ports.clock.monotonic()
        kept = self._opened.get(uri)
        if kept is None or fresh or now - kept[1] > _SECONDS:
            kept = open_configured(uri, storage_options=self._options, ports=self.ports), now
            self._opened[uri] = kept
        return kept[0]

    def find(self, table: str, *, fresh: bool = False) -> TableHandle | None:
        """As `open`; None if no table is there. One that is not below the root is another deployment's, or was this
        one's and will be again: nothing is known of it."""
        uri = place(table, root=self._root)
        try:
            return self.open(uri, fresh=fresh)
        except Invalid:
            if configs.read(self.ports.store(uri, self._options), uri=uri) is None:
                self._opened.pop(uri, None)
                return None
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Objects beside the queue, for what is too big for a message. They expire when messages do."""

    uri: str
    store: ObjectStore

    @classmethod
    def below(cls, work: str) -> Inbox:
        """The inbox of a deployment, by the URI of what may expire. Touches nothing yet."""
        uri = f"{work.rstrip('/')}/inbox"
        return cls(uri=uri, store=open_store(uri))

    def get(self, key: str) -> bytes | None:
        """The object's bytes, if there is one."""
        found = self.store.get(key)
        return None if found is None else found.body

    def put(self, key: str, body: bytes) -> None:
        """Write an object whose key says what is in it; one that stands there is the same."""
        if put_once(self.store, key, body, attempts=range(2)) is None:
            raise Unavailable("the inbox gave no answer", object=key)
