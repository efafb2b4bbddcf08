"""Laws that every policy keeps, tried on small worlds: `rmgr policy check`.

`check` is the whole; `trying` holds the laws. It finds a broken law, shrinks its world and tells its story; it never excuses one.
"""
