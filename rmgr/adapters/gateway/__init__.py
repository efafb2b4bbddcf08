"""The gateway's own services over gRPC: streams on which clients speak of work, rows of the store, and calls that it passes on.

`store` and `TalkLink` in `talk` are the client's side; `Talks`, `rows` and `forward` are that of `rmgr submitter`.
The room may use `rpc`, `access`, `identity` and `store_rules`.
It knows nothing of what is said: it passes words and values on, within each user's bounds.
"""
