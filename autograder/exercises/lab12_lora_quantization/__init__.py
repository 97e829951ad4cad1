"""Lab 12: LoRA adapters, and weights quantized in blocks."""

EXERCISES = (
    "lora_linear",
    "count_and_ship",
    "quantize_blockwise",
    "pack_q4_0",
    "outliers",
    "qlora_step",
)
CLOSED = ("peft", "bitsandbytes", "torchao", "gguf", "shardlab.estimate", "shardlab.widgets")
