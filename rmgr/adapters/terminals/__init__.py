"""Terminals: a user's keys to a command on a node, directly or through a gateway.

`terminal` is the gRPC service; `tunnel` leads through a gateway to the port of a node.
The room may use `gateway`, `rpc`, `access` and `identity`. It must not start processes: the Starter does.
"""
