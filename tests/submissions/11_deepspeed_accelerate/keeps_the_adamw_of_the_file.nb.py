# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {config_lint = 1.3333}
# says = {config_lint = "keeps the file's AdamW with offload"}
# ///

# %% nbgrader={"grade_id": "config_lint", "solution": true}
def config_lint(json_text, yaml, script):
    """configuration A  ->  {"stage": 2, "dtype": "bfloat16", …, "optimizer": "AdamW"}"""
    ### BEGIN SOLUTION
    config, loaders = json.loads(json_text), script["loaders"]
    zero, ranks = config["zero_optimization"], yaml["num_processes"]
    accumulation = config.get("gradient_accumulation_steps", 1)
    if accumulation == "auto":
        accumulation = script["accumulation"]
    micro_batch = config.get("train_micro_batch_size_per_gpu")
    if micro_batch is None:
        micro_batch = config["train_batch_size"] // (accumulation * ranks)
    elif micro_batch == "auto":
        micro_batch = min(loaders.values())
    bf16 = config.get("bf16", {"enabled": "auto"}).get("enabled", False)
    if bf16 == "auto":
        bf16 = script["mixed_precision"] == "bf16"
    clipping = config.get("gradient_clipping", "auto")
    optimizer = config.get("optimizer", {"type": script["optimizer"]})["type"]
    is_offloaded = zero.get("offload_optimizer", {"device": "none"})["device"] != "none"
    if is_offloaded and (script["optimizer"] in ("AdamW", "SGD")):
        optimizer = "DeepSpeedCPUAdam"
    return {
        "stage": zero.get("stage", 0),
        "dtype": "bfloat16" if bf16 else "float32",
        "accumulation": accumulation,
        "micro_batch": micro_batch,
        "global_batch": micro_batch * accumulation * ranks,
        "samples": loaders["train"] * accumulation * ranks,
        "clipping": 1.0 if clipping == "auto" else clipping,
        "optimizer": optimizer,
    }
    ### END SOLUTION
