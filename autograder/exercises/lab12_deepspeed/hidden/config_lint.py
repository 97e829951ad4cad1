import json
from pathlib import Path
from typing import Any

from autograder.exercise import questions
from autograder.exercises.lab12_deepspeed.config_lint import VISIBLE
from shardlab.recorded_runs import config_runs
from shardlab.recorded_runs.config_runs import Ran

MICRO = "train_micro_batch_size_per_gpu"
HIDDEN = Path(__file__).with_name("configs.json")
RECORDED = config_runs.load(HIDDEN)  # by "case: name"
CASES = tuple(
    questions(case, *(asked for name, (asked, _) in RECORDED.items() if name.startswith(case)))
    for case in dict.fromkeys(name.partition(":")[0] for name in RECORDED)
)
BOUNDARIES = {
    "divides": '"auto", numbers, and keys that are left out',
    "does not divide": "not tested: DeepSpeed refuses a train_batch_size that does not divide",
    "one rank": "who owns the optimizer",
    "more ranks than elements": "not tested: a micro-batch has at least one sample",
    "every key left out": "other keys that are repeated, misplaced or left out",
}
_RAN = {json.dumps(asked): ran for asked, ran in (*VISIBLE.values(), *RECORDED.values())}


def right(**asked: Any) -> Ran:
    """What the engine that was prepared from this configuration reported."""
    return _RAN[json.dumps(asked)]


def per_machine(**asked: Any) -> Ran:
    """All configurations for several machines have "auto" for the micro-batch."""
    ran, machines = right(**asked), asked["yaml"]["num_machines"]
    return ran | {each: machines * ran[each] for each in ("global_batch", "samples")}


def micro_of_training(**asked: Any) -> Ran:
    """Where the file has "auto"."""
    ran, train = right(**asked), asked["script"]["loaders"]["train"]
    if json.loads(asked["json_text"]).get(MICRO) != "auto":
        return ran
    global_batch = ran["global_batch"] // ran["micro_batch"] * train
    return ran | {"micro_batch": train, "global_batch": global_batch}


def precision_of_script(**asked: Any) -> Ran:
    is_bf16 = asked["script"]["mixed_precision"] == "bf16"
    return right(**asked) | {"dtype": "bfloat16" if is_bf16 else "float32"}


def precision_of_file(**asked: Any) -> Ran:
    is_bf16 = json.loads(asked["json_text"]).get("bf16", {}).get("enabled") is True
    return right(**asked) | {"dtype": "bfloat16" if is_bf16 else "float32"}


def written_optimizer(**asked: Any) -> Ran:
    """The class that the file or the script names, even on the host."""
    in_file = json.loads(asked["json_text"]).get("optimizer", {}).get("type")
    return right(**asked) | {"optimizer": in_file or asked["script"]["optimizer"]}


def samples_as_reported(**asked: Any) -> Ran:
    return right(**asked) | {"samples": right(**asked)["global_batch"]}


MISTAKES = {
    "takes num_processes for the processes of one machine: it is their total over all machines": (
        per_machine
    ),
    'takes the training loader\'s batch size for "auto": Accelerate takes the smallest of all '
    "loaders that prepare gets, including the one for evaluation": micro_of_training,
    "takes the wrong precision: a bf16 section in the file counts first, an empty one is off; the "
    'script\'s mixed_precision replaces "auto" there, and counts where there is no such section, '
    "even next to an fp16 section": (precision_of_script, precision_of_file),
    "keeps the optimizer's class with offload: Accelerate replaces an AdamW and the script's SGD "
    'with DeepSpeedCPUAdam, for every device but "none"': written_optimizer,
    "takes the engine's global batch for the samples of a step: the training loader's batches stay "
    "as large as the script made them": samples_as_reported,
}
