"""Reference interpreters, the runner of `.gy` file tests and random well-formed programs."""
