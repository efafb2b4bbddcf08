"""rmgr: a fault-tolerant resource manager for clusters whose parts keep failing."""
