"""Messages that are sent and never stored: frames between Starter, spawner and workers, and direct lines between client and Starter.

A message is data with its codec. The senders own the sockets.
"""
