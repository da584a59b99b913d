"""Statements: the straight-line bodies that Loop IR, Kernel IR and Tile IR share."""
