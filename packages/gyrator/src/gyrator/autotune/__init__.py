"""Choices that are made by measurement (`max_autotune`, `freezing`)."""
