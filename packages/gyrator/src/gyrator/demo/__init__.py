"""Real models through the whole compiler: `python -m gyrator.demo`."""
