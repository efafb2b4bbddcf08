"""The gateway: the Coordinator and Store ports over gRPC, for clients that cannot reach ZooKeeper or the store.

`coordinator`, `link`, `dial` and `store` are the client's side; `server`, `rows` and `forward` are that of `rmgr submitter`.
The room may use `rpc`, `access`, `identity`, `zookeeper` (the session) and `store_rules`.
It must not decide what is committed: it passes multis and values on, within each user's bounds.
"""
