"""Kernels in Triton's language: compiled by worker processes, kept in the cache, launched natively.

`build` turns units into stored binaries, `pool` and `worker` are the processes that compile,
`binary` is what is stored, `driver` speaks to the device's driver library, `launch` is what a plan
calls.
"""
