"""Access: who calls a gRPC server, what they may call, and how much of the server each user may hold.

`auth` identifies and authorises callers, and ends streams of callers whose key is revoked; `limits` counts what users take;
`turns` decides who goes first; `server_threads` divides a server's threads, and ends calls that hold them. The room may use `identity`.
It must not know which services exist: `rpc` and `gateway` build on it.
"""
