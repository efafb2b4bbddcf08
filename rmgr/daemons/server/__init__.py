"""The server of calls: runs named functions for clients that come through gateways."""
