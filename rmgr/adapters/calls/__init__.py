"""Calls of named functions over gRPC: the relay in a gateway, and the ends of its streams in servers and clients."""
