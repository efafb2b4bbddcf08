"""The ZooKeeper protocol AS DATA, pure: paths, records, multis, read-back, views. No clock, no IO, no logging."""
