"""SQLite: the embedded Store port in one file on a local disk, with large values as files beside it.

`store` implements the port; `writer` is the only thread that writes; `file` opens connections.
The room may use `store_rules`, `coord` and `model`. It must not know ZooKeeper, gRPC or other stores.
"""
