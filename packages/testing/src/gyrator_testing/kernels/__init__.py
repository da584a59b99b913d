"""Kernels for tests of emitters: hand-written, random, and one for each row of the op table."""
