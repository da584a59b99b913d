"""Passes for cores with vector registers and threads."""
