"""Passes for devices whose programs process blocks of elements."""
