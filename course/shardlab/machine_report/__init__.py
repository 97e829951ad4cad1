"""What a machine can do: processors, memory, limits, GPUs and the links between them."""
