import json
from collections.abc import Callable
from typing import Any

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab11_deepspeed_accelerate.config_lint import VISIBLE
from autograder.exercises.lab11_deepspeed_accelerate.configurations import ACCUMULATION, MICRO
from autograder.exercises.lab11_deepspeed_accelerate.hidden.record_configs import HIDDEN, OF_CASES
from shardlab.recorded_runs import config_runs
from shardlab.recorded_runs.config_runs import Ran

RECORDED = config_runs.load(HIDDEN)


def of_case(case: str) -> Case:
    return questions(case, *(RECORDED[f"{case}: {name}"][0] for name in OF_CASES[case]))


CASES = tuple(map(of_case, OF_CASES))
BOUNDARIES = {
    "divides": '"auto", numbers, and keys that are left out',
    "does not divide": "not tested: DeepSpeed refuses a train_batch_size that does not divide",
    "one rank": "who owns the optimizer",
    "more ranks than elements": "not tested: a micro-batch has at least one sample",
    "every key left out": "other keys that are repeated, misplaced or left out",
}
EQUIVALENT_ANSWERS: tuple[EquivalentAnswer, ...] = ()
_RAN = {json.dumps(asked): ran for asked, ran in (*VISIBLE.values(), *RECORDED.values())}


def right(**asked: Any) -> Ran:
    """What the engine that was prepared from this configuration reported."""
    return _RAN[json.dumps(asked)]


def first_wins(text: str) -> dict[str, Any]:
    """The configuration if the first of several equal keys counted."""
    return dict(json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs))))


def wrong(
    asked: dict[str, Any],
    accumulation: int = 0,
    micro_batch: int = 0,
    ranks: int = 0,
    **others: Any,
) -> Ran:
    """The right answer with other values and the batches that result from them."""
    ran = right(**asked)
    ranks = ranks or asked["yaml"]["num_processes"]
    accumulation = accumulation or ran["accumulation"]
    micro_batch = micro_batch or ran["micro_batch"]
    if MICRO not in json.loads(asked["json_text"]):
        micro_batch = ran["global_batch"] // accumulation // ranks
    return {
        **ran,
        "accumulation": accumulation,
        "micro_batch": micro_batch,
        "global_batch": micro_batch * accumulation * ranks,
        "samples": asked["script"]["loaders"]["train"] * accumulation * ranks,
        **others,
    }


def per_machine(**asked: Any) -> Ran:
    return wrong(asked, ranks=asked["yaml"]["num_processes"] * asked["yaml"]["num_machines"])


def on_this_machine(**asked: Any) -> Ran:
    return wrong(asked, ranks=asked["yaml"]["num_processes"] // asked["yaml"]["num_machines"])


def auto_micro(of_loaders: Callable[[dict[str, int]], int], **asked: Any) -> Ran:
    """With a different batch size where the file has "auto"."""
    is_auto = json.loads(asked["json_text"]).get(MICRO) == "auto"
    return wrong(asked, micro_batch=of_loaders(asked["script"]["loaders"]) if is_auto else 0)


def micro_of_training(**asked: Any) -> Ran:
    return auto_micro(lambda loaders: loaders["train"], **asked)


def micro_of_loader(**asked: Any) -> Ran:
    """The loaders' batch size, regardless of the file."""
    return wrong(asked, micro_batch=min(asked["script"]["loaders"].values()))


def largest_micro(**asked: Any) -> Ran:
    return auto_micro(lambda loaders: max(loaders.values()), **asked)


def accumulation_of_script(**asked: Any) -> Ran:
    return wrong(asked, accumulation=asked["script"]["accumulation"])


def accumulation_if_left_out(**asked: Any) -> Ran:
    left_out = ACCUMULATION not in json.loads(asked["json_text"])
    return wrong(asked, accumulation=asked["script"]["accumulation"] if left_out else 0)


def precision_of_script(**asked: Any) -> Ran:
    is_bf16 = asked["script"]["mixed_precision"] == "bf16"
    return wrong(asked, dtype="bfloat16" if is_bf16 else "float32")


def precision_of_file(**asked: Any) -> Ran:
    section = json.loads(asked["json_text"]).get("bf16", {})
    return wrong(asked, dtype="bfloat16" if section.get("enabled") is True else "float32")


def clipping_if_left_out(value: float, **asked: Any) -> Ran:
    """With a different value where the file has none or "auto"."""
    found = json.loads(asked["json_text"]).get("gradient_clipping", "auto")
    return wrong(asked, clipping=value if found == "auto" else found)


def first_key(**asked: Any) -> Ran:
    config, ran = first_wins(asked["json_text"]), right(**asked)
    numbers = {
        name: found
        for name, key in (
            ("accumulation", ACCUMULATION),
            ("micro_batch", MICRO),
        )
        if isinstance(found := config.get(key), int)
    }
    if config.get(MICRO) == "auto":
        numbers["micro_batch"] = min(asked["script"]["loaders"].values())
    if config.get(ACCUMULATION) == "auto":
        numbers["accumulation"] = asked["script"]["accumulation"]
    enabled = config.get("bf16", {}).get("enabled")
    dtype = {True: "bfloat16", False: "float32"}.get(enabled, ran["dtype"])
    clipping = config.get("gradient_clipping", 1.0)
    return wrong(
        asked,
        **numbers,
        dtype=dtype,
        stage=config["zero_optimization"].get("stage", 0),
        clipping=1.0 if clipping == "auto" else clipping,
    )


def any_level(**asked: Any) -> Ran:
    config = json.loads(asked["json_text"])
    return obeying({**config, **config["zero_optimization"]}, asked)


def top_level(**asked: Any) -> Ran:
    config = json.loads(asked["json_text"])
    return obeying({**config["zero_optimization"], **config}, asked)


def on_the_host(asked: dict[str, Any]) -> str:
    """The optimizer with offload, which an SGD in the file survives."""
    in_file = json.loads(asked["json_text"]).get("optimizer", {}).get("type")
    return "SGD" if in_file == "SGD" else "DeepSpeedCPUAdam"


def obeying(section: dict[str, Any], asked: dict[str, Any]) -> Ran:
    """The answer if this were the section zero_optimization."""
    on_host = section.get("offload_optimizer", {}).get("device", "none") != "none"
    optimizer = on_the_host(asked) if on_host else right(**asked)["optimizer"]
    return wrong(asked, stage=section.get("stage", 0), optimizer=optimizer)


def written_optimizer(**asked: Any) -> Ran:
    """The class that the file or the script names, even on the host."""
    in_file = json.loads(asked["json_text"]).get("optimizer", {}).get("type")
    return wrong(asked, optimizer=in_file or asked["script"]["optimizer"])


def adamw_of_file(**asked: Any) -> Ran:
    """Keep the file's AdamW, even with offload."""
    in_file = json.loads(asked["json_text"]).get("optimizer", {}).get("type")
    return wrong(asked, optimizer="AdamW" if in_file == "AdamW" else right(**asked)["optimizer"])


def only_adamw(**asked: Any) -> Ran:
    """Keep SGD, even with offload."""
    is_sgd = asked["script"]["optimizer"] == "SGD"
    return wrong(asked, optimizer="SGD" if is_sgd else right(**asked)["optimizer"])


def optimizer_of_script(**asked: Any) -> Ran:
    ran = right(**asked)
    is_dummy = asked["script"]["optimizer"] == "DummyOptim"
    return wrong(asked, optimizer="DummyOptim" if is_dummy else ran["optimizer"])


def always_on_host(**asked: Any) -> Ran:
    """With any offload_optimizer section, even one whose device is "none"."""
    section = json.loads(asked["json_text"])["zero_optimization"].get("offload_optimizer", {})
    on_host = section.get("device") == "none"
    return wrong(asked, optimizer="DeepSpeedCPUAdam" if on_host else right(**asked)["optimizer"])


def samples_as_reported(**asked: Any) -> Ran:
    return wrong(asked, samples=right(**asked)["global_batch"])


def reports_samples(**asked: Any) -> Ran:
    return wrong(asked, global_batch=right(**asked)["samples"])


MISTAKES = {
    "takes num_processes for the processes of one machine: it is their total over all machines": (
        per_machine
    ),
    "counts the processes of this machine only: num_processes is the total over all machines, and "
    "all of them train": on_this_machine,
    'takes the training loader\'s batch size for "auto": Accelerate takes the smallest of all '
    "loaders that prepare gets, including the one for evaluation": micro_of_training,
    'takes the largest of the loaders for "auto": Accelerate takes the smallest': largest_micro,
    "takes the micro-batch from the loaders, but a number in the file is not replaced": (
        micro_of_loader
    ),
    "takes the script's accumulation where the file has no gradient_accumulation_steps: it is then "
    "1": accumulation_if_left_out,
    "takes the script's accumulation, but a number in the file is not replaced": (
        accumulation_of_script
    ),
    "takes the script's mixed_precision, but a bf16 section in the file counts first: only "
    '"auto" or no section at all leaves it to the script': precision_of_script,
    'does not take the script\'s mixed_precision where it counts: it replaces "auto", and adds a '
    "bf16 section where the file has none, even next to an fp16 section": precision_of_file,
    "does not clip where the file has no number: DeepSpeed clips to 1.0 by default, and "
    '"auto" is 1.0, too': (
        lambda **asked: clipping_if_left_out(0.0, **asked),
        lambda **asked: clipping_if_left_out(None, **asked),  # type: ignore[arg-type]
    ),
    "takes the first of several equal keys: when Accelerate reads the file, the last one counts": (
        first_key
    ),
    "obeys a key at the wrong level: DeepSpeed ignores what it does not know at the top level": (
        any_level,
        top_level,
    ),
    "replaces only AdamW: with offload, Accelerate turns SGD into DeepSpeedCPUAdam, too": (
        only_adamw
    ),
    "keeps the optimizer's class with offload: Accelerate replaces the script's optimizer with "
    'DeepSpeedCPUAdam, for every device but "none"': written_optimizer,
    "keeps the file's AdamW with offload: it becomes DeepSpeedCPUAdam, too": adamw_of_file,
    'replaces the optimizer for an offload section whose device is "none"': always_on_host,
    "names DummyOptim, which only stands for the optimizer of the file": optimizer_of_script,
    "takes the engine's global batch for the samples of a step: the training loader's batches stay "
    "as large as the script made them": samples_as_reported,
    "takes the samples of a step for the engine's global batch, which is micro_batch × "
    "accumulation × ranks": reports_samples,
}
