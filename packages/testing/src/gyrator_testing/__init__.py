"""Reference interpreters of the three IR levels, the runner of `.gy` files, random programs."""
