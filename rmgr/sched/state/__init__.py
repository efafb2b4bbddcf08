"""The cluster as facts have made it: partitions, their waiting and running jobs, snapshots of all records, logs of events.

Facts change it and nothing else does. It imports `capacity` and the nouns; it never sees a draft.
"""
