"""Finding what goes wrong: running a graph by itself, making it small, naming the stage."""
