"""Self-describing `.gy` files as tests."""
