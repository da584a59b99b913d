"""Passes that decide how precisely, and by which operations, programs compute."""
