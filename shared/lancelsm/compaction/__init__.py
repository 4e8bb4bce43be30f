"""Flush the log into generations, merge them into the base, optimize the base: each step, and the loop that runs them.

Rows are never joined. The delta's live rows become new fragments, and base rows with a key of the delta are hidden by
deletion files, one task a fragment. `plan` decides, `tasks` work on any machine, `merge` drives and holds the conflict
policy. Models: merge_order, merge_redo.
"""
