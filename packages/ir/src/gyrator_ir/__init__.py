"""Gyrator's data: expressions, the op table, four levels of IR, targets, and their protocols.

Every stage of the compiler imports this package and none of the others.
"""
