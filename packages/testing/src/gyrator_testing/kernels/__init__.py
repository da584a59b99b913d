"""Kernels for tests of emitters: written, drawn at random, and one a row of the op table."""
