"""Passes that choose the layouts of tensors."""
