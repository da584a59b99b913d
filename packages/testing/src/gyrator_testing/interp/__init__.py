"""The reference meaning of each IR level, evaluated with NumPy."""
