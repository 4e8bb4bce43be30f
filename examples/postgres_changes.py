"""Apply the changes of a table of PostgreSQL, by logical decoding. Kill it at any time, and start it again.

PGHOST=/tmp PGDATABASE=shop python examples/postgres_changes.py public.orders orders

It needs `psql`, wal_level=logical, and a slot: select pg_create_logical_replication_slot('orders', 'test_decoding').
The table exists, with the columns of the source and one more, `lsn` of int64, which orders the events.
Debezium does the same for many tables and types. Here the events get its shape in a few lines.
"""

import json
import re
import subprocess
import sys

import lancelsm

COLUMN = re.compile(r"""(\w+|"(?:[^"]|"")+")\[([^:]+)\]:('(?:[^']|'')*'|\S+)|new-tuple: """)
NUMBERS = {"smallint": int, "integer": int, "bigint": int, "real": float, "double precision": float}


def psql(query):
    done = subprocess.run(["psql", "-XAtqc", query], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.split("\n") if line]  # splitlines() would also split texts at U+2028


def rows(text):
    """Return the row of a change; of an update with the old row or key, both."""
    found = [{}]
    for name, kind, text_of_value in COLUMN.findall(text):
        if name:
            found[-1][unquoted(name, '"')] = value(kind, text_of_value)
        else:
            found.append({})
    return found


def unquoted(text, mark):
    return text[1:-1].replace(mark * 2, mark) if text.startswith(mark) else text


def value(kind, text):
    if text == "null":
        return None
    if text == "unchanged-toast-datum":  # apply_changes takes the value of the stored row
        return "__debezium_unavailable_value"
    plain = unquoted(text, "'")
    if kind == "boolean":
        return plain == "true"
    return NUMBERS[kind](plain) if kind in NUMBERS else plain.replace(" ", "T") if "time" in kind else plain


def event(lsn, data):
    """Return an event in Debezium's shape; None for another table, and for the begin or end of a transaction."""
    found = re.match(rf"table {re.escape(sys.argv[1])}: (INSERT|UPDATE|DELETE|TRUNCATE): (.*)", data, re.DOTALL)
    if found is None:
        return None
    *before, after = rows(found[2]) if found[1] != "DELETE" else (*rows(found[2]), None)
    sides = {"before": before[0] if before else None, "after": after}
    op = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}[found[1]]
    return {"op": op, **sides, "source": {"lsn": lsn}}


def transactions(changes):
    """Yield the events of each transaction with the position of its end: its events are applied together."""
    events = []
    for lsn, data in changes:
        if (one := event(lsn, data)) is not None:
            events.append(one)
        if data.startswith("COMMIT"):
            yield lsn, events
            events = []


def step(table, slot):
    """Apply what the slot has, then let PostgreSQL forget it. A repeated step applies nothing twice."""
    peek = f"pg_logical_slot_peek_changes('{slot}', null, 1000)"
    lines = psql(f"select json_build_array(lsn - '0/0'::pg_lsn, data) from {peek}")
    done = list(transactions(map(json.loads, lines)))
    if not done:
        return None
    events = [one for _, found in done for one in found]
    offsets = [lsn for lsn, found in done for _ in found]
    applied = table.apply_changes(events, format="debezium", sequence_by="lsn", source=slot, offset=offsets)
    psql(f"select pg_replication_slot_advance('{slot}', '0/0'::pg_lsn + {done[-1][0]})")
    return applied


if __name__ == "__main__":
    target = lancelsm.open(sys.argv[2])
    while (applied := step(target, "orders")) is not None:
        print(applied, flush=True)
