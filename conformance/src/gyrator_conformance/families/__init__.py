"""Small models of published families with random weights, compared with eager mode."""
