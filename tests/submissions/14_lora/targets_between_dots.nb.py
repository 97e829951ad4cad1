# /// shardlab-submission
# lab = "14_lora"
# loses = {count_and_ship = 2.4}
# says = {count_and_ship = "adapts other modules than the targets"}
# ///

# %% nbgrader={"grade_id": "count_and_ship", "solution": true}
def count_and_ship(shapes, r, targets, world_size, tokens):
    adapters = frozen = 0
    for name, shape in shapes.items():
        if len(shape) != 2:
            continue
        module = name.split(".")[-2]
        if module not in ("token", "position"):
            frozen += shape[0] * shape[1]
        if any("." + t + "." in name for t in targets):
            adapters += r * (shape[0] + shape[1])
    return {
        "adapters": adapters,
        "state_bytes": 12 * adapters,
        "sent_bytes": 2 * (world_size - 1) * 4 * adapters / world_size,
        "flops": tokens * (4 * frozen + 6 * adapters),
    }
