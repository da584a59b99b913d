"""Dynamo's graphs, and corrections to them before they are traced."""
