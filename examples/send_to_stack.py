"""Send rows to a deployment through the queue, write some directly, and read them: python examples/send_to_stack.py
STAGE TABLE

The table has the columns id (int64, the key), state (text) and total (float64). Credentials and AWS region are boto3's.
"""

import sys

from lancelsm.client import Client

stage, table = sys.argv[1:]
with Client(stage=stage) as client:
    for number in range(10_000):  # buffered, sent in requests of 1 MiB, applied once and in this order
        client.upsert(table, [{"id": number, "state": "new", "total": number / 4}])
    client.delete(table, [{"id": 0}])
    client.flush()  # returns when the queue has all rows

    committed = client.write(table, [{"id": -1, "state": "paid", "total": 7.0}])  # readable when this returns
    print(committed.rows, [(entry.region, entry.position) for entry in committed.entries])
    print(client.query(table, keys=[-1]))
    print(client.count(table, where="state = 'new'"), "rows of the queue are applied so far")
