# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {count_and_ship = 1.8}
# says = {count_and_ship = "only contains a target"}
# ///

# %% nbgrader={"grade_id": "count_and_ship", "solution": true}
def count_and_ship(shapes, r, targets, world_size, tokens):
    base = adapters = 0
    for name, shape in shapes.items():
        module = name.split(".")[-2]
        if len(shape) < 2 or module in ("token", "position"):
            continue
        rows, columns = shape
        base += rows * columns
        if any(t in module for t in targets):
            adapters += r * (rows + columns)
    return {
        "adapters": adapters,
        "state_bytes": 12 * adapters,
        "sent_bytes": 2 * (world_size - 1) / world_size * 4 * adapters,
        "flops": (4 * base + 6 * adapters) * tokens,
    }
