"""Builds, loads, caches, tunes and launches generated kernels and host programs."""
