"""ZooKeeper: the Coordinator port over one connection, its wire format, access lists and probes.

`session` implements the port on any link; `client` is the link through kazoo and the only file that imports it.
`server` connects to one server, tells what it does, and reads a few znodes without kazoo, for commands.
The room may use `coord` and `model`.
It must not know gRPC, stores, keys or processes, and it never decides what a znode means.
"""
