"""Values: functions, modules, arguments and results as bytes in the data store, by content or by the user's key.

`values` reads and writes by key; `claims` takes output keys; `pickling`, `scattered` and `content` encode and store once.
The room may use `identity`, `procedures` and the Store port. It must not submit work or know which task wants a value.
"""
