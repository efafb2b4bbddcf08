"""Access: who calls a gRPC server, what they may call, and how much of the server each user may hold.

`auth` identifies and authorises callers; `limits`, `shares` and `turnstile` divide the server between users;
`request`, `stalls` and `expel` end calls that hold threads or lost their key. The room may use `identity`.
It must not know which services there are: `rpc` and `gateway` build on it.
"""
