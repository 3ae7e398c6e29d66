"""Matrix-vector products, for a batch of one."""
