"""Adapters carry out the ports of `coord` and the orders of daemons: ZooKeeper, the data stores, gRPC, processes, keys.

Each room wraps one outside system. From top to bottom: `stores` (opens a data store by its URL) and `terminals`;
`gateway`; `rpc`, `zookeeper`, `cassandra` and `sqlite`; `access`; `identity`, `host`, `store_rules` and `policy_files`.
Rooms may use the rooms below them, `coord`, `sched` and `model`. They must not decide what the cluster does: no adapter
imports a daemon, the client, or `runtime`. Third-party clients (kazoo, the Cassandra driver) stay inside one file each.
"""
