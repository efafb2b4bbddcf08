"""The gateway's own services over gRPC: streams of words between clients and gateway, values of the store, and forwarded calls.

`store` and `TalkLink` in `talk` are the client's side; `Talks` and `forward` are the side of `rmgr submitter`.
The room may use `rpc`, `access`, `identity` and `store_rules`.
It does not interpret the words: it passes words and values on, within each user's bounds.
"""
