import tempfile

import lancelsm

orders = [{"id": 1, "state": "new", "total": 12.5}, {"id": 2, "state": "new", "total": 7.0}]
table = lancelsm.create(f"{tempfile.mkdtemp()}/orders", orders, primary_key="id", regions="bucket(id, 4)")

table.upsert([{"id": 2, "state": "paid", "total": 7.0}, {"id": 3, "state": "new", "total": 3.0}])
table.delete([1])
print(table.scan(where="state = 'new'").to_pylist())  # acknowledged rows are visible at once
print(table.get([2]).to_pylist())

table.flush()  # from logs to generations
table.merge()  # from generations to the base
print(table.scan(columns=["id", "state"], order_by="id").to_pylist(), table.status().base_version)
