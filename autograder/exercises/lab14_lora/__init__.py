"""Lab 14: LoRA adapters, and their training on a base in 4 bits."""

EXERCISES = ("lora_linear", "count_and_ship", "qlora_step")
CLOSED = ("peft", "bitsandbytes", "torchao", "gguf", "shardlab.estimate", "shardlab.widgets")
