"""From an FX graph to Loop IR."""
