"""The table as it was: snapshots, cursors and the change stream, and the pins that keep what they read."""
