"""Shared parts of the text forms of the four levels: lines, words, and declarative line formats."""
