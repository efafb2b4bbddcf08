"""Checks each field of each record that somebody can write into ZooKeeper.

`records` is asked; `rules` judge one field, `work` and `cluster` name the rule of each. It reads records and refuses; it repairs nothing.
"""
