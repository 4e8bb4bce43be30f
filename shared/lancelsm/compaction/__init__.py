"""Flush the log into generations, merge generations into the base, optimize the base; and run these steps when due.

In an AWS deployment the function named `compaction` runs the flush only. The function `merger` or a Spark job merges;
`merger` optimizes.

A merge never joins rows. It writes the live rows of the delta as new fragments and hides base rows with the same keys
by deletion files, one task per fragment. `plan` decides what to merge, `tasks` do the work on any machine, and `merge`
runs them, commits, and decides what to do about conflicts. Models: tests/model/merge_order.py, merge_redo.py.
"""
