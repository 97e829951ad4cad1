"""Chapter 12 runs from top to bottom, and its outputs match its text."""

import contextlib
import json

import pytest

from shardlab import RankError, launch
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"trained without an error": "'3'", "After save_checkpoint": "SAVED[1]"}
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("12_deepspeed", folder, predictions=predictions)
    print(f"\nchapter 12: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def test_each_mistake_of_the_example_raises_its_error(chapter):
    for cell, error, line in [
        ("first.message", "ImportError: cannot import name 'Hparams'", "import Deep"),
        ("train_as_written, as_found", "JSONDecodeError: Expecting property name", "json.loads"),
        (
            "train_as_written, valid_json",
            "DeepSpeedFP16Config\nscale_window\n",
            "deepspeed.initialize",
        ),
        ("train_as_written, known_keys", "TypeError: '>' not supported", "engine.step()"),
        (
            "train_as_written, merged",
            "3 validation errors for DeepSpeedZeroConfig",
            "deepspeed.initialize",
        ),
    ]:
        printed = chapter.text_of(cell)
        assert error in printed
        assert line in printed.splitlines()[-1]
    assert "a name in the script" in chapter.text_of("predicted_first.compare")
    assert "measured 7" in chapter.text_of("predicted_line.compare")
    printed = chapter.text_of("train_as_written, merged")
    assert "\noffload_param\n" in printed
    assert "\npartition_activations\n" in printed
    assert "\nfast_init\n" in printed


def test_the_example_starts_but_not_as_its_author_intended(chapter):
    rows = chapter.table_of("show_difference(first_settings)")
    wrong = {row["setting"]: row["the engine has"] for row in rows if row["as wanted"] == "no"}
    assert wrong == {
        "ZeRO stage": "0",
        "optimizer states on": "device",
        "parameters on": "device",
        "whole weights on save": "False",
        "forward passes of a block": "1",
    }
    printed = chapter.text_of("predicted_stage.compare")
    assert "that is what the first zero_optimization says" in printed


MISTAKES = {
    "a comment": '{"train_batch_size": 4  // on all ranks\n}',
    "a missing comma": '{"train_batch_size": 4\n "wall_clock_breakdown": false}',
    "a key twice": '{"train_batch_size": 4, "train_batch_size": 8}',
}


def read_mistakes(folder):
    from deepspeed.runtime.config import DeepSpeedConfig

    found = {}
    for number, (mistake, text) in enumerate(MISTAKES.items()):
        path = folder / f"{number}.json"
        path.write_text(text)
        try:
            found[mistake] = DeepSpeedConfig(str(path)).train_batch_size
        except ValueError as error:
            found[mistake] = str(error)
    return found


def test_each_json_reader_misses_a_mistake(tmp_path):
    accepted = []
    for mistake, text in MISTAKES.items():
        with contextlib.suppress(json.JSONDecodeError):
            json.loads(text)
            accepted.append(mistake)
    assert accepted == ["a key twice"]
    found = launch(read_mistakes, tmp_path, world_size=1, device="cpu", timeout_s=120).outputs[0]
    assert found["a comment"] == found["a missing comma"] == 4
    assert "Duplicate keys" in found["a key twice"]


def test_the_repaired_example_is_as_its_author_intended(chapter):
    printed = chapter.text_of('holds(f"with the JSON alone')
    assert "✓ every rank has what the author wanted" in printed
    printed = chapter.text_of('print("in model_checkpoint.pt:"')
    assert printed.count("_mp_rank_00_optim_states.pt") == 4
    assert printed.count("_mp_rank_00_model_states.pt") == 4
    assert "bfloat16" in printed
    verdict = chapter.text_of("predicted_saved.compare")
    assert "a folder" in verdict
    assert "part of rank 0" in verdict  # the guess


def test_two_batch_sizes_give_the_third_or_an_error(chapter):
    code = "print(*refused"
    rows = [tuple(row.values()) for row in chapter.table_of(code)]
    assert rows == [
        ("micro 2", "8", "2", "1"),
        ("train 16", "16", "4", "1"),
        ("train 16 and micro 2", "16", "2", "2"),
    ]
    printed = chapter.text_of(code)
    assert "train 30: train_batch_size is not equal" in printed
    assert "16 != 3 * 1 * 4" in printed
    assert "accumulation 2: Either train_batch_size or" in printed


def test_the_engine_steps_at_the_boundary_warms_up_late_and_clips(chapter):
    assert "measured stage 1: 4, stage 2: 8" in chapter.text_of("driven = {stage")
    rows = chapter.table_of("micro_batches, samples = ")
    assert [row["boundary"] for row in rows] == ["False", "True"] * 4
    assert [row["moved by"] for row in rows] == ["0.0000"] * 5 + ["0.0250", "0.0000", "0.0500"]
    assert "measured 32, predicted 32" in chapter.text_of("micro_batches, samples = ")
    assert "✓ norm of the update / learning rate" in chapter.text_of("clipped_to = ")


def test_scale_divides_by_the_accumulation_steps_too(chapter):
    code = "moved, refused = launch(all_ways"
    engine, scaled, twice = [list(row.values())[1:] for row in chapter.table_of(code)]
    assert engine == scaled != twice
    printed = chapter.text_of(code)
    assert printed.count("✓") == 2
    assert "stage 0: Direct calls to tensor.backward() are not supported" in printed


def test_zero_init_builds_the_model_sharded(chapter):
    without, inside = chapter.table_of('columns |= {"shape of token.weight"')
    assert without["built"] == "120,576"
    assert inside["built"] == inside["after initialize"] == without["after initialize"] == "60,288"
    assert inside["shape of token.weight"] == "[0]"
    assert inside["in GatheredParameters"] == "[256, 64]"


def test_zero_takes_over_the_optimizer_passed_to_it(chapter):
    code = "given, refused, by_json = "
    rows = [tuple(row.values())[1:] for row in chapter.table_of(code)]
    assert rows[0][0] == "SGD"
    assert rows[1] == rows[2] == ("DeepSpeedZeroOptimizer", "[(106,)]")
    assert rows[3] == ("DeepSpeedZeroOptimizer_Stage3", "[]")
    printed = chapter.text_of(code)
    assert "without the key: You are using an untested ZeRO Optimizer" in printed
    assert "type Adam in the JSON: AdamW 0.01" in printed


def test_stage_0_does_not_scale_the_loss(chapter):
    rows = chapter.table_of("updates = launch(fp16_engines")
    moved = [(row["update (2 is right)"], row["skipped steps"]) for row in rows]
    assert moved[:3] == [("2.000000", "0"), ("0.000000", "1"), ("0.007812", "0")]
    assert "✓ stage 0: how many times too small" in chapter.text_of("by_case = ")


def test_one_key_in_five_changes_the_calls_of_stage_1(chapter):
    assert "measured reduce_bucket_size" in chapter.text_of("predicted_keys.compare")
    rows = {name: calls for name, *calls in map(dict.values, chapter.table_of('CALLS, "d")'))}
    assert rows["reduce_bucket_size"] == ["7", "–", "1"]
    assert rows["allgather_partitions"] == rows["reduce_scatter"] == rows["stage 1"]
    assert rows["stage 3, sub_group_size"] == ["5", "6", "1"]
    assert rows["stage 3, reduce_scatter"] == ["7", "–", "1"]
    assert "✓ stage 1: bytes" in chapter.text_of('CALLS, "d")')


def test_deepspeeds_launcher_reads_a_hostfile(chapter):
    printed = chapter.text_of("launch(command_for")
    assert "pdsh -S -f 1024 -w node-a,node-b" in printed
    assert "--node_rank=%n --master_addr=node-a" in printed
    assert "does not exist: None" in printed


def test_with_hpz_the_gather_in_backward_stays_within_a_node(chapter):
    assert "measured 1.5" in chapter.text_of("predicted_hpz.compare")
    cell = '"link alone in backward, s": ".2f"'
    rows = [[*row.values()][:4] for row in chapter.table_of(cell)]
    assert rows == [
        ["stage 3", "0.75", "2.25", "0.38"],
        ["with hpZ", "0.75", "1.50", "0.25"],
        ["kept gathered", "0.75", "1.50", "0.25"],
    ]
    assert chapter.text_of(cell).count("✓") == 4


def step_with(keys):
    import deepspeed
    import torch
    from torch import nn

    config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True}
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    config["zero_optimization"] = {"stage": 3, **keys}
    engine = deepspeed.initialize(model=nn.Linear(64, 64), config=config)[0]
    engine.backward(engine(torch.ones(2, 64)).sum())


@pytest.mark.parametrize("key", ["zero_quantized_weights", "zero_quantized_gradients"])
def test_quantized_messages_need_a_gpu(key):
    with pytest.raises(RankError, match="This op had not been implemented on CPU backend"):
        launch(step_with, {key: True}, world_size=2, device="cpu", timeout_s=120, quiet=True)


def load_from(folder):
    import deepspeed
    from torch import nn

    config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True}
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    config["zero_optimization"] = {"stage": 1}
    engine = deepspeed.initialize(model=nn.Linear(8, 8), config=config)[0]
    return engine.load_checkpoint(folder)


def test_a_folder_without_a_checkpoint_raises_no_error(tmp_path):
    """As chapter 11 says."""
    run = launch(load_from, str(tmp_path / "typo"), world_size=1, device="cpu", timeout_s=120)
    assert run.outputs[0] == (None, None)


def pipeline_engine(stage):
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from torch import nn

    model = PipelineModule([nn.Linear(8, 8)] * 2, num_stages=2, loss_fn=nn.MSELoss())
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    config["zero_allow_untested_optimizer"] = True
    try:
        return type(deepspeed.initialize(model=model, config=config)[0]).__name__
    except AssertionError as error:
        return str(error)


def pipeline_engines():
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return [pipeline_engine(stage) for stage in range(4)]


def test_stages_2_and_3_exclude_pipelines():
    gives = launch(pipeline_engines, world_size=2, device="cpu", timeout_s=120).outputs[0]
    assert gives[:2] == ["PipelineEngine"] * 2
    assert all("incompatible with pipeline parallelism" in each for each in gives[2:])


@pytest.mark.browser
def test_reopened_pictures_fit(chapter, loaded_lab, artifacts):
    """Only plots and predictions: the chapter has no other widgets."""
    assert try_the_pictures(chapter, loaded_lab, artifacts) == set()
