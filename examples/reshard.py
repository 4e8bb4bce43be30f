"""Give a table more regions while a writer goes on."""

import itertools
import tempfile
import threading

import lancelsm

rows = [{"id": number, "total": 0} for number in range(100)]
table = lancelsm.create(f"{tempfile.mkdtemp()}/orders", rows, primary_key="id", regions="bucket(id, 2)")
other = lancelsm.open(table.uri)  # as in another process
acknowledged: dict[int, int] = {}
done = threading.Event()


def write() -> None:
    for number in itertools.count():
        other.upsert([{"id": number % 100, "total": number}])  # waits while the old regions are sealed
        acknowledged[number % 100] = number
        if done.is_set():
            return


writer = threading.Thread(target=write)
writer.start()
result = table.reshard("bucket(id, 8)")
done.set()
writer.join()

print(result.regions, result.sealed, result.opened)
print(other.config.regions)  # the writer has found the new regions by itself
found = {row["id"]: row["total"] for row in table.get(list(acknowledged)).to_pylist()}
print(found == acknowledged)  # no row was lost or reordered
