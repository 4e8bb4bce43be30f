"""Read earlier states and changes of a table: snapshots, cursors, the change stream, and the pins that keep objects."""
