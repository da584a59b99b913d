"""Passes for devices that run a thread for each element."""
