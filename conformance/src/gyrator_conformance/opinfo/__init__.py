"""Every op of torch's own database (OpInfo), on all its samples, against eager mode."""
