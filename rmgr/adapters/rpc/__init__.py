"""gRPC: the servers of daemons, their thin clients, and direct lines between a client and a Starter.

`server` is the server and the client of the leader and of nodes; `join`, `ranks` and `use` are single services;
`thin` asks the leader without gRPC's library. The room may use `access`, `identity` and the channel of `host`.
It must not know ZooKeeper or stores: handlers give and take nouns of `model`.
"""
