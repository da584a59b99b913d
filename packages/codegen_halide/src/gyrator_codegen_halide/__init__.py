"""From kernels to Halide: algorithms from their statements, schedules from their tile loops."""
