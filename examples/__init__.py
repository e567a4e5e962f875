"""What the product is for, shown on real work: the examples use the public API only."""
