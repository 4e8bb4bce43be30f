"""Fold pending generations into the base: upsert and delete by key, in one commit that carries every region's counter.

Rows are never joined. The delta's live rows become new fragments, and base rows with a key of the delta are hidden by
deletion files, one task a fragment. `plan` decides, `tasks` work on any machine, `commit` drives and holds the conflict
policy. Models: merge_order, merge_redo.
"""
