"""Passes for devices that run one thread per element."""
