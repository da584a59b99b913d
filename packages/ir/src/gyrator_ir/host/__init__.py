"""Wrapper IR: the host program as typed instructions."""
