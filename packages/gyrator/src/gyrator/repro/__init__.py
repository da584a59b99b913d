"""Diagnosing failures: running a graph alone, minimizing it, and finding the faulty stage."""
