"""Plans: which layout of a model on a cluster fits its memory, and how long its step takes."""
