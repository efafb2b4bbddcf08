"""One node as a whole, and the loop of a Starter: orders, registry, why no work is taken, gRPC service, settling after each message.

The rooms below are put together here. Only the loop's thread calls them.
"""
