"""From kernels to Triton text, with templates and candidate configurations as data."""
