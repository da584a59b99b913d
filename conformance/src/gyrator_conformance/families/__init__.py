"""Families of published models, small and with random weights, against eager mode."""
