"""Diagnosing failures: running a graph alone, minimising it, and finding the faulty stage."""
