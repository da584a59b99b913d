"""Random PyTorch programs, compiled and compared with eager execution; failures are shrunk."""
