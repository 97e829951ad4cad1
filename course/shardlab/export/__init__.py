"""A plain script from a function of a chapter, for torchrun on any number of nodes."""
