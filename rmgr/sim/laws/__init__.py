"""Laws that every policy must keep, tried on small worlds: `rmgr policy check`.

`world` draws worlds, `drive` runs a policy in one, and `check` holds the laws, shrinks the world of a broken law and tells its story.
"""
