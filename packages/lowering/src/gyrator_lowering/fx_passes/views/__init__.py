"""Passes over views and copies of slices."""
