"""Passes over calls of attention."""
