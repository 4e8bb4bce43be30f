import tempfile
import threading

import lancelsm

accounts = [{"id": "ann", "balance": 100, "version": 1}, {"id": "bob", "balance": 0, "version": 1}]
table = lancelsm.create(f"{tempfile.mkdtemp()}/accounts", accounts, primary_key="id")


def pay(current):  # runs again if another writer is faster, so it must have no effects of its own
    balance = {row["id"]: row["balance"] for row in current.to_pylist()}
    if balance["ann"] < 10:
        return None
    return [
        {"id": "ann", "balance": balance["ann"] - 10, "version": 2},
        {"id": "bob", "balance": balance["bob"] + 10, "version": 2},
    ]


threads = [threading.Thread(target=table.transact, args=(["ann", "bob"], pay)) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(table.scan(order_by="id").to_pylist())  # ten of the twelve had enough

print(table.upsert([{"id": "bob", "balance": 0, "version": 1}], if_absent=True).skipped)
print(table.upsert([{"id": "bob", "balance": 0, "version": 1}], if_newer="version").skipped)
table.upsert([{"id": "bob", "version": 3}], partial=True)  # the balance stays
table.update(where="balance > 0", set={"balance": "balance + 1"})

read = table.get(["bob"], with_token=True)
table.delete(["bob"])
try:
    table.upsert(read.rows, if_unchanged=read.token)
except lancelsm.Contended as error:
    print(error.message)
