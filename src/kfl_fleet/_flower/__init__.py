"""Everything that knows Flower 1.41. Nothing outside of this package imports it or speaks its protocols."""
