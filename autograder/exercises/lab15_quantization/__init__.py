"""Lab 15: weights quantized in blocks, a file's bytes, and products with outliers."""

EXERCISES = ("quantize_blockwise", "pack_q4_0", "outliers")
CLOSED = ("peft", "bitsandbytes", "torchao", "gguf", "shardlab.estimate", "shardlab.widgets")
