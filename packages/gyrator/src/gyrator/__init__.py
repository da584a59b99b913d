"""A compiler for PyTorch programs: `torch.compile(model, backend="gyrator")`."""
