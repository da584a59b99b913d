"""Builds, loads, caches, tunes and launches what the emitters wrote."""
