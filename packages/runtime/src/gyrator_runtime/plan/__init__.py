"""Host programs as plans: lowered once, stored as data, linked by each process that runs them.

- `lower`: the Wrapper IR to plans in words (`native.encode`); only a fresh compile imports it.
- `stored`: plans as text and back.
- `link`: what plans refer to becomes objects of this process, and plans become callables.
"""
