"""From operations to kernels: which run together, in which iteration space, in which stages."""
