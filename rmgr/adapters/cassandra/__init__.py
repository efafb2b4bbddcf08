"""Cassandra: the Store port of clusters in one keyspace, its connection, its statements and its sweep.

`store` implements the port; `driver` is the only file that imports the driver; `setup` creates and upgrades the schema.
The room may use `store_rules`, `coord` and `model`. It must not know ZooKeeper, gRPC or other stores.
"""
