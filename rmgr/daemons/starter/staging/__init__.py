"""Files and values in and out of tasks: inputs ahead of their turn, uploads, outputs behind it, bounded in bytes.

It reads and writes the store only through `core.io`, and knows tasks only as the blocks of `core`.
"""
