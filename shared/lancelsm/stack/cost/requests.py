"""How many requests each step makes. tests/unit/test_cost.py counts real requests and compares them with these numbers.

The numbers are for the steady state of a table with one region, in containers that have read its configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Numbers of requests by price, to S3 and to a registry in DynamoDB."""

    object_writes: float = 0  # PUT and LIST
    object_reads: float = 0  # GET and HEAD
    record_writes: float = 0  # units of 1 KB; one more if the index `dirty` changes
    record_reads: float = 0  # units of 4 KB, strongly consistent

    def __add__(self, other: Requests) -> Self:
        return type(self)(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    def __mul__(self, times: float) -> Self:
        return type(self)(**{one.name: times * getattr(self, one.name) for one in fields(self)})


INGEST: Final = Requests(record_reads=3)  # one invocation
WRITE: Final = Requests(object_writes=1, record_writes=1, record_reads=1)  # one entry
WRITE_FIRST: Final = Requests(record_writes=1)  # in addition for the first entry after a merge, which marks the region
FLUSH: Final = Requests(object_writes=13, object_reads=7, record_writes=1, record_reads=2)  # one generation
FLUSH_ENTRY: Final = Requests(object_reads=1)  # in addition for each entry in it
MERGE: Final = Requests(object_writes=11, object_reads=14, record_writes=4, record_reads=3)  # in process
MERGE_GENERATION: Final = Requests(object_writes=1, object_reads=2)  # in addition for each generation in it
OPTIMIZE: Final = Requests(object_writes=10, object_reads=15, record_writes=4, record_reads=4)  # after each merge
REWRITE: Final = Requests(object_writes=14, object_reads=25)  # in addition if it compacts the base
REWRITE_FRAGMENT: Final = Requests(object_reads=5)  # in addition for each fragment that is replaced
COLLECT: Final = Requests(object_writes=44, object_reads=64, record_writes=8, record_reads=30)  # one round
COLLECT_ENTRY: Final = Requests(object_reads=2)  # in addition for each deleted entry
COLLECT_GENERATION: Final = Requests(object_writes=1)  # in addition for each deleted generation
COLLECT_KEPT: Final = Requests(object_reads=14)  # in addition for each merge whose versions of the base are kept
SCRUB_UNCHANGED: Final = Requests(object_writes=1, object_reads=2, record_reads=4)  # a table that has not changed
COLLECT_GONE: Final = Requests(object_reads=14)  # in addition for each merge whose versions are deleted
