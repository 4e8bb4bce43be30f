import tempfile

import lancelsm

folder = tempfile.mkdtemp()
orders = [{"id": 1, "email": "ann@example", "total": 12.5}, {"id": 2, "email": "bob@example", "total": 7.0}]
table = lancelsm.create(f"{folder}/orders", orders, primary_key="id")

table.upsert([{"id": 3, "email": "eve@example", "total": 1.5}])
table.run()  # a version has what is merged
before = table.history()[-1]
table.update(where="true", set={"total": "total * 100"})  # a mistake
table.delete([2])
table.run()

with table.at(before.time.isoformat()) as old:  # or table.at(before.version)
    print(old.scan(columns=["id", "total"], order_by="id").to_pylist())

done = table.restore(before.version)  # in place; rows that others write meanwhile stay
print(done.written, done.deleted, table.count())

copied = lancelsm.copy(table.uri, f"{folder}/by-email", primary_key="email", regions="bucket(email, 4)")
print(lancelsm.open(copied.uri).get(["bob@example"]).to_pylist())
print(lancelsm.create(copied.uri, table.schema, primary_key="email", regions="bucket(email, 4)", exist_ok=True).count())
try:
    table.upsert([{"id": 4, "email": "bob@example", "total": 1.0}])
    lancelsm.copy(table.uri, f"{folder}/again", primary_key="email")
except lancelsm.Invalid as error:
    print(error.message)
