"""Passes that decide how programs access memory."""
