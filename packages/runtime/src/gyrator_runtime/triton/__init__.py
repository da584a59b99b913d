"""Triton kernels: compiled by worker processes, cached, and launched natively.

`build` compiles units to stored binaries, `pool` and `worker` implement the compiling processes,
`binary` defines the stored form, `driver` calls the device's driver library, and `launch` has the
kernels that plans launch.
"""
