import tempfile
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import lancelsm

schema = pa.schema([("id", pa.string()), ("user", pa.string()), ("seen_at", pa.timestamp("us", "UTC"))])
table = lancelsm.create(f"{tempfile.mkdtemp()}/sessions", schema, primary_key="id", ttl="30m on seen_at")

now = datetime.now(UTC)
table.upsert(
    [
        {"id": "a", "user": "ann", "seen_at": now},
        {"id": "b", "user": "bob", "seen_at": now - timedelta(hours=2)},  # has expired
        {"id": "c", "user": "cleo", "seen_at": None},  # never expires
    ]
)
print(sorted(row["id"] for row in table.scan().to_pylist()), table.get(["b"]).num_rows)

table.upsert([{"id": "b", "user": "bob", "seen_at": now}])  # a newer row of the key
print(table.count(), table.status().ttl)

table.upsert([{"id": "a", "user": "ann", "seen_at": now - timedelta(hours=1)}])
table.run()  # a merge writes no expired row into the base, and hides the older ones of its key
print(sorted(row["id"] for row in table.scan().to_pylist()), table.optimize().rows_expired)

table.set_ttl("1d on seen_at")  # None: rows don't expire any more
print(table.status().ttl)
