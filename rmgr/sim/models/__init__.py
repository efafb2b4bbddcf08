"""Workload models: jobs drawn from named streams, so that one seed gives every policy the same workload."""
