# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {count_and_ship = 3.0}
# says = {count_and_ship = "assumes that every weight is square"}
# ///

# %% nbgrader={"grade_id": "count_and_ship", "solution": true}
def count_and_ship(shapes, r, targets, world_size, tokens):
    """{"query.weight": (3, 5)}, 2, ["query"], 2, 10  ->
    {"adapters": 16, "state_bytes": 192, "sent_bytes": 64, "flops": 1560}"""
    base = adapters = 0
    for name, shape in shapes.items():
        module = name.split(".")[-2]
        if len(shape) < 2 or module in ("token", "position"):
            continue
        rows, columns = shape
        base += rows * columns
        if module in targets:
            adapters += r * 2 * columns
    return {
        "adapters": adapters,
        "state_bytes": 12 * adapters,
        "sent_bytes": 2 * (world_size - 1) / world_size * 4 * adapters,
        "flops": (4 * base + 6 * adapters) * tokens,
    }
