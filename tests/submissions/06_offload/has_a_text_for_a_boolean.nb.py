# /// shardlab-submission
# lab = "06_offload"
# loses = {fix_config = 1.0}
# says = {fix_config = "should have a boolean as"}
# ///
# C: DeepSpeed converts the text and starts.

# %% nbgrader={"grade_id": "fix_config", "solution": true}
def fix_config():
    """for example {"A": ("not_json", repaired text), "B": …, "C": …, "D": …, "E": …}"""
    return {
        "A": (
            "not_json",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "wall_clock_breakdown": false,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}
}""",
        ),
        "B": (
            "duplicate_key",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "allgather_bucket_size": 200000000,
    "reduce_bucket_size": 200000000
  }
}""",
        ),
        "C": (
            "wrong_level",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": "false"}
  }
}""",
        ),
        "D": (
            "batch_size",
            """{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3}
}""",
        ),
        "E": (
            "two_precisions",
            """{
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2}
}""",
        ),
    }
