"""Checks between nodes before torchrun, which waits ten minutes for what cannot come."""
