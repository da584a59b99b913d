"""From Wrapper IR to a `torch.fx.GraphModule`."""
