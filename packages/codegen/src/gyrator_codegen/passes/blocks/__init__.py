"""Passes for devices that run blocks of elements as programs."""
