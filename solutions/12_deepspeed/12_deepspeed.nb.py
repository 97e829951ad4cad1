# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 12 · DeepSpeed
#
# A training script that starts without an error may still train something other than what its author meant. You will read configurations and say what they really run: the stage, the batch, the clipping, the optimizer.
#
# **In this lab you**
#
# - say what a DeepSpeed configuration really runs, and find mistakes that raise no error;
# - tell which of three files decides each value: JSON, YAML or script;
# - predict the batch of an optimizer step on any number of machines.
#
# **You need:** [chapter 12](../../course/chapters/12_deepspeed.ipynb).
#
# <!-- table of points -->
#
# The exercise has a task, a **spec** that runs, a **budget**, your cell, a comparison with what ran, and a check. Grading adds hidden cases: other configurations.

# %%
print("Loading Shardlab: a few seconds, longer the first time on a computer …")

import json

from autograder import check
from shardlab import show_table
from shardlab.recorded_runs import config_runs

# %% [markdown]
# ## 1 · `config_lint`
#
# A colleague starts a script with `accelerate launch`. Three places decide what runs: DeepSpeed's JSON file, Accelerate's YAML file, and the script. They often disagree, usually without an error. Write `config_lint(json_text, yaml, script)`, which returns what will really run:
#
# - `json_text` is the content of DeepSpeed's file, which the YAML file names as `deepspeed_config_file`;
# - `yaml` is the content of Accelerate's file, a dict;
# - `script` has what the script passes to Accelerate: `"mixed_precision"` (`"bf16"` or `"no"`) and `"accumulation"` (for `gradient_accumulation_steps`), the class of the `"optimizer"`, and `"loaders"`, the batch size of each loader that `prepare` gets, `{"train": 8, "evaluation": 2}`; a script may have no evaluation loader.

# %%
configuration_a, ran_a = config_runs.load()["A"]
print(configuration_a["json_text"])
print(configuration_a["yaml"])
print(configuration_a["script"])

# %% [markdown]
# It returns a dict of eight values. The engine reports seven of them: its `"stage"`, the `"dtype"` of its parameters, `"accumulation"`, `"micro_batch"`, `"global_batch"`, `"clipping"` (0 means none), and the class of the `"optimizer"` that makes the update. The eighth, `"samples"`, was counted: how many samples all ranks together passed to the model for one optimizer step. It should be the global batch, but the engine does not count; it only multiplies.
#
# Here are eight configurations; grading uses others. All were run on real ranks with real engines, and the answers are what these engines reported.

# %%
def config_lint_spec(name):
    """What the engine of this configuration reported."""
    return config_runs.load()[name][1]

show_table(
    {"": "", **dict.fromkeys(config_lint_spec("A"), "")},
    [(name, *config_lint_spec(name).values()) for name in "ABCDEFGH"],
)

# %% [markdown]
# The other seven configurations:

# %%
for name in "BCDEFGH":
    configuration, _ = config_runs.load()[name]
    yaml = configuration["yaml"]
    print(f"--- {name}: num_machines {yaml['num_machines']}, num_processes {yaml['num_processes']}")
    print(configuration["script"])
    print(configuration["json_text"])

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# The rules; each of them can be seen in one of the eight runs:
#
# - `num_processes` is the total over all machines.
# - A number in the JSON file stays as it is, whatever the script says.
# - `"auto"` becomes the script's `accumulation`, its `mixed_precision`, a micro-batch from the loaders, or a clipping of 1.0.
# - A missing key gets a default: clipping 1.0, stage 0, accumulation 1 (not the script's). If the micro-batch is missing, DeepSpeed divides `train_batch_size`.
# - If there is no `bf16` section, `mixed_precision` decides. An empty section means off.
# - DeepSpeed ignores keys that it does not know at the top level. Inside `zero_optimization` it rejects them.
# - Accelerate reads the file with `json.loads`: if a key is repeated, the last one counts. (DeepSpeed itself rejects such a file.)
# - The optimizer is offloaded if `offload_optimizer` has a `device` other than `"none"`. Then Accelerate replaces the script's `AdamW` or `SGD` with `DeepSpeedCPUAdam`, and prints nothing: SGD becomes Adam.
# - A script's `DummyOptim` stands for the file's `optimizer`. With offload, an `AdamW` there becomes `DeepSpeedCPUAdam`, too; an `SGD` there does not.
#
# <details><summary>Hint 1 · the micro-batch from the loaders</summary>
#
# Compare configuration A with its run: training has batches of 8, and evaluation of 2. Which of them did Accelerate report to the engine? And what did the training loader do?
# </details>
# <details><summary>Hint 2 · defaults</summary>
#
# `config.get(key, default)` returns the default for a missing key, and `"auto"` is a value like any other: first look up the key, then replace `"auto"`. For `bf16`, the section may be missing, or `enabled` inside it.
# </details>
# <details><summary>Hint 3 · the order</summary>
#
# Accumulation first, then the micro-batch, which may have to be `train_batch_size` divided by accumulation and ranks. The global batch is a product of three numbers, and so is `samples`; two of the numbers are the same.
# </details>

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
    if is_offloaded and (optimizer == "AdamW" or script["optimizer"] == "SGD"):
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

# %% [markdown]
# Your answers, next to what ran:

# %%
for name, (configuration, ran) in config_runs.load().items():
    answer = config_lint(**configuration) or {}
    differ = [key for key in ran if answer.get(key) != ran[key]]
    found = [f"{key} {answer.get(key)!r}, but {ran[key]!r} ran" for key in differ]
    print(f"{name}:", "; ".join(found) or "as it ran")

# %% nbgrader={"grade_id": "check_config_lint", "grade": true}
check("deepspeed.config_lint", config_lint)

# %% [markdown]
# ## 2 · What will this run train?
#
# A colleague wants to fine-tune a model, with DeepSpeed through Accelerate, on two nodes of 8 GPUs, and writes: "ZeRO-3, on all 16 GPUs, with 256 samples in each optimizer step, and gradients clipped at 0.5." On the first node, `accelerate launch` gets this configuration; on the second, the same with `machine_rank: 1`. Below it are `ds.json` and the script's first lines:
#
# ```yaml
# distributed_type: DEEPSPEED
# num_machines: 2
# machine_rank: 0
# main_process_ip: 10.0.0.1
# main_process_port: 29500
# num_processes: 16
# deepspeed_config:
#   deepspeed_config_file: ds.json
# ```
#
# ```json
# {
#   "train_micro_batch_size_per_gpu": "auto",
#   "gradient_accumulation_steps": 2,
#   "gradient_clipping": "auto",
#   "bf16": {"enabled": true},
#   "zero_optimization": {"stage": 3, "overlap_comm": true, "stage": 2}
# }
# ```
#
# ```python
# accelerator = Accelerator(gradient_accumulation_steps=2)
# loader, eval_loader = DataLoader(train_data, batch_size=8), DataLoader(eval_data, batch_size=1)
# optimizer = AdamW(model.parameters(), lr=2e-5)
# model, optimizer, loader, eval_loader = accelerator.prepare(model, optimizer, loader, eval_loader)
# ```
#
# What is right, what is wrong, and which mistakes raise no error? Give the number of ranks, the samples in an optimizer step and the batch size that DeepSpeed assumes, the stage, and the limit on the gradients' norm. Write three to five sentences.

# %% [markdown] nbgrader={"grade_id": "what_will_this_run_train", "grade": true, "solution": true, "points": 1}
# ### BEGIN SOLUTION
# The number of ranks is right: `num_processes` counts all machines, so there are 16. The batch is right, too: 8 samples · 2 micro-batches · 16 ranks = 256. But "auto" takes the smallest batch size of all prepared loaders, 1, so DeepSpeed assumes 1 · 2 · 16 = 32; no gradient changes, but whatever is computed from its `train_batch_size`, such as samples per second, is wrong by a factor of 8.
#
# The stage is 2: of duplicate keys, the last one counts. DeepSpeed rejects them when it reads a file itself, but here Accelerate reads it, and there is no error. Gradients are clipped at 1.0, the value of "auto", not at 0.5.
#
# Points: half for 16 ranks and 256 samples (DeepSpeed's 32), half for stage 2 and clipping at 1.0. Half of each if one number is missing.
# ### END SOLUTION
