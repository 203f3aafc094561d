"""The same algorithm on real machines, over Flower."""
