"""Host programs as plans: lowered once, stored as data, and linked by each process that runs them.

- `lower`: from Wrapper IR to encoded plans (`native.encode`). Only a new compile imports it.
- `stored`: serialisation of plans.
- `link`: resolves the references of plans to objects of this process, and returns callables.
"""
