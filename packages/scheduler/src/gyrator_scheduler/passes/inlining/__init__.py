"""The parts of `inline-pointwise`: solving addresses, choosing producers, expanding readers."""
