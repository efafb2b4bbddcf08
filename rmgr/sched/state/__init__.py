"""The cluster as facts have made it: partitions, their waiting and running jobs, snapshots of all records, logs of events.

Only facts change it. It imports `capacity` and the nouns, and never sees a draft.
"""
