"""Access: who calls a gRPC server, what they may call, and how much of the server each user may hold.

`auth` identifies and authorises callers, and ends streams of those whose key is revoked; `limits` counts what users take;
`turns` says who goes first; `server_threads` divides the threads of a server, and ends calls that hold them. It may use `identity`.
It must not know which services there are: `rpc` and `gateway` build on it.
"""
