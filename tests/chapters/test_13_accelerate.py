"""Chapter 13 runs from top to bottom, and its outputs match its text."""

import inspect
import re
from pathlib import Path

import accelerate
import pytest
import torch
from torch import nn

from shardlab import launch
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("13_accelerate", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 13: {chapter.seconds:.0f} s (budget: 120 s)")
    return chapter


def test_each_step_of_the_port_makes_the_calls_of_the_handwritten_loop(chapter):
    assert "divided twice" in chapter.text_of("predicted_wrong.compare")
    assert chapter.text_of("right = [name for name in VERSIONS").count("✓") == 2
    rows = chapter.table_of("right = [name for name in VERSIONS")
    samples = {row["version"]: row["samples of rank 0"] for row in rows}
    assert samples.pop("loader and sampler") == "8"
    assert set(samples.values()) == {"16"}


def test_a_prepared_loader_assigns_whole_batches(chapter):
    assert "4, 5, 6, 7" in chapter.text_of("predicted_share.compare")
    rows = chapter.table_of('columns = {"rank": "d", "DistributedSampler"')
    assert [tuple(row.values())[1:] for row in rows] == [
        ("0, 2, 4, 6", "0, 1, 2, 3"),
        ("1, 3, 5, 7", "4, 5, 6, 7"),
    ]


def test_autocast_changes_a_matmul():
    x = torch.ones(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert nn.functional.mse_loss(x, x).dtype == torch.float32


def test_a_weight_missing_from_a_file_stays_random_without_an_error(tmp_path):
    model = nn.Linear(4, 2)
    torch.save({"bias": torch.ones(2)}, tmp_path / "no_weight.bin")
    random = model.weight.clone()
    options = {"device_map": {"": "cpu"}, "strict": True}
    accelerate.load_checkpoint_and_dispatch(model, str(tmp_path / "no_weight.bin"), **options)
    assert torch.equal(model.weight, random)
    assert model.bias.tolist() == [1, 1]


KEYS = (Path(__file__).parents[2] / "docs/deepspeed_keys.md").read_text(encoding="utf-8")


def keys_of(heading):
    section = KEYS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def keys_asked_for(section):
    from accelerate.commands.config import cluster

    return set(re.findall(rf'{section}\["(\w+)"\] = ', inspect.getsource(cluster)))


def test_the_page_of_keys_lists_what_accelerate_asks_for():
    assert keys_of("Accelerate: deepspeed_config") == keys_asked_for("deepspeed_config")
    version_1 = {"backward_prefetch", "forward_prefetch", "use_orig_params", "sync_module_states"}
    version_1 = {f"fsdp_{key}" for key in version_1}
    assert keys_of("Accelerate: fsdp_config") | version_1 == keys_asked_for("fsdp_config")


def deepspeed_keys():
    from deepspeed.runtime.activation_checkpointing import config as activations
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    def accepted(config):
        fields = config.model_fields.items()
        return {name for key, field in fields for name in (key, field.alias)}

    sections = {"zero_optimization": accepted(DeepSpeedZeroConfig)}
    sections["fp16"] = accepted(DeepSpeedFP16Config)
    sections["activation_checkpointing"] = set(activations.ACT_CHKPT_DEFAULT)
    return sections


def test_deepspeed_has_each_key_that_the_page_lists():
    run = launch(deepspeed_keys, world_size=1, device="cpu", timeout_s=120)
    for section, accepted in run.outputs[0].items():
        listed = keys_of(f"DeepSpeed: {section}")
        assert listed
        assert listed <= accepted


def test_the_json_can_own_the_optimizer(chapter):
    rows = chapter.table_of("launch(who_owns")
    assert [row["optimizer"] for row in rows] == ["SGD", "AdamW"]
    assert [row["accumulation"] for row in rows] == ["4", "4"]
    assert chapter.text_of("launch(who_owns").count("✓") == 3
    assert "SGD, and AdamW in the JSON: You cannot" in chapter.text_of("launch(who_owns")


def test_the_local_index_repeats_on_every_node(chapter):
    rows = chapter.table_of("run = launch(who_prints")
    assert [row["accelerator.print"] for row in rows] == ["True", "False", "True", "False"]
    assert [row["main process"] for row in rows] == ["True", "False", "False", "False"]
    rows = chapter.table_of("different numbers, by column")
    by_local_index = [row["seed + local index"] for row in rows]
    assert by_local_index[:2] == by_local_index[2:]


def test_half_under_bf16_makes_nan_without_an_error(chapter):
    rows = chapter.table_of("run = launch(inputs_in_16_bits")
    assert [row["output"] == "nan" for row in rows] == [False, False, True]
    assert "must have the same dtype" in chapter.text_of("run = launch(inputs_in_16_bits")


def test_metrics_and_schedules_count_what_they_should(chapter):
    assert "measured 12" in chapter.text_of("run = launch(gather_both_ways")
    assert "every sample once" in chapter.text_of('print("gather:"')
    rows = chapter.table_of("fast[0], slow[0]")
    assert [row["steps"] for row in rows] == ["12", "3"]


def test_a_checkpoint_lacks_the_order_of_samples(chapter):
    assert "model.safetensors" in chapter.text_of("accelerate_disk = ")
    assert "pytorch_model.bin" in chapter.text_of("accelerate_disk = ")
    restored = chapter.text_of("accelerate_disk = ")
    assert "measured [False, False]" in restored


def test_one_function_finds_each_silent_failure(chapter):
    rows = chapter.table_of("def differences(seen, wanted)")
    assert {row["setup"]: row["differs in"] for row in rows} == {
        "Accelerator() on CPUs": "distributed_type, world size, samples per step",
        "schedule by process": "schedule steps per step",
        "model not prepared": "parameters equal",
        "split_batches": "samples per step",
    }


def test_launchers_start_what_the_chapter_says(chapter):
    rows = chapter.table_of('holds("what differs"')
    assert {row["what runs"]: row["here"] for row in rows}["world size"] == "1"
    assert "✓ nothing differs" in chapter.text_of("torchrun = (")
    became = {row["key"]: row["auto became"] for row in chapter.table_of("became = engine")}
    assert became["train_micro_batch_size_per_gpu"] == "2"
    assert became["gradient_clipping"] == "1.0"
    assert became["reduce_bucket_size"] == "256"
    assert "parameters kept whole, of 4" in chapter.text_of("became = engine")


def test_accelerate_never_selects_fsdp_on_cpus(chapter):
    rows = chapter.table_of("run = launch(try_fsdp")
    assert [row["distributed_type"] for row in rows] == ["MULTI_CPU", "NO"]
    assert {row["parameters"] for row in rows} == {"Parameter"}


@pytest.mark.browser
def test_reopened_pictures_fit(chapter, loaded_lab, artifacts):
    """Only plots and predictions: the chapter has no other widgets."""
    assert try_the_pictures(chapter, loaded_lab, artifacts) == set()
