"""gRPC: the servers of daemons, their thin clients, and direct lines between a client and a Starter.

Each daemon runs a `server`; `channels` are the clients' end; `services` are those of the leader and of nodes; `join`, `ranks`,
`metaserver` and `use` each hold one service; `thin` asks the leader without gRPC's library. The room may use `access`, `identity` and the
channel of `host`. It must not know ZooKeeper or stores: handlers take and return nouns of `model`.
"""
