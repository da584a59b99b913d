"""Passes that say how programs of blocks read and write memory."""
