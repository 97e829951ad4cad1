"""Chapter 11 runs from top to bottom, and its outputs match its text."""

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"trained without an error": "'3'", "After save_checkpoint": "SAVED[1]"}
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("11_deepspeed_accelerate", folder, predictions=predictions)
    print(f"\nchapter 11: {chapter.seconds:.0f} s (budget: 120 s)")
    return chapter


def test_each_mistake_of_the_example_raises_its_error(chapter):
    for cell, error, line in [
        ("example_as_found, as_found", "ImportError: cannot import name 'Hparams'", "import Deep"),
        ("train_as_written, as_found", "JSONDecodeError: Expecting property name", "json.loads"),
        ("train_as_written, no_comment", "Expecting ',' delimiter: line 7 column 3", "json.loads"),
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
        (
            "train_as_written, moved",
            "AssertionError: Cannot provide deprecated",
            "deepspeed.initialize",
        ),
    ]:
        printed = chapter.text_of(cell)
        assert error in printed
        assert line in printed.splitlines()[-1]
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


def test_each_json_reader_misses_a_mistake(chapter):
    rows = chapter.table_of("launch(both_readers")
    assert [tuple(row.values()) for row in rows] == [
        ("a comment", "JSONDecodeError", "accepted"),
        ("a missing comma", "JSONDecodeError", "accepted"),
        ("a key twice", "accepted", "ValueError"),
    ]


def test_the_repaired_example_is_as_its_author_intended(chapter):
    printed = chapter.text_of('holds(f"with the JSON alone')
    assert "✓ every rank has what the author wanted" in printed
    files = chapter.table_of('{"in model_checkpoint.pt": ""')
    assert {row["in model_checkpoint.pt"]: row["files"] for row in files} == {
        "bf16_zero_pp_rank_*_mp_rank_00_optim_states.pt": "4",
        "zero_pp_rank_*_mp_rank_00_model_states.pt": "4",
        "latest": "1",
        "zero_to_fp32.py": "1",
        "zero_to_torch.py": "1",
    }
    verdict = chapter.text_of("predicted_saved.compare")
    assert "a folder" in verdict
    assert "part of rank 0" in verdict  # the guess
    assert "bfloat16" in chapter.text_of("model.load_state_dict(weights)")


def test_two_batch_sizes_give_the_third_or_an_error(chapter):
    code = 'print(*(f"{name}: {error}" for name, error in found.items()'
    rows = [tuple(row.values()) for row in chapter.table_of(code)]
    assert rows == [
        ("micro 2", "8", "2", "1"),
        ("train 16", "16", "4", "1"),
        ("train 16, micro 2", "16", "2", "2"),
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


def test_zero_takes_over_the_optimizer_passed_to_it(chapter):
    code = "given, refused, by_json = "
    rows = [tuple(row.values())[1:] for row in chapter.table_of(code)]
    assert rows[0][0] == "SGD"
    assert rows[1] == rows[2] == ("DeepSpeedZeroOptimizer", "[(106,)]")
    assert rows[3] == ("DeepSpeedZeroOptimizer_Stage3", "[]")
    printed = chapter.text_of(code)
    assert "without the key: You are using an untested ZeRO Optimizer" in printed
    assert "type Adam in the JSON: AdamW 0.01" in printed


def test_deepspeeds_loader_repeats_the_order_of_the_first_epoch(chapter):
    rows = chapter.table_of("read = launch(give_loaders")
    batches = [row["batches"] for row in rows]
    assert batches[0] == batches[1] != batches[2] == batches[3]
    assert len(set(batches[4:])) == 4
    assert "must be a torch Dataset" in chapter.text_of("read = launch(give_loaders")


def test_the_loss_scale_follows_its_keys(chapter):
    assert "measured 64" in chapter.text_of("predicted_scale.compare")
    assert "<svg" in chapter.svg_of("axes.step(")
    assert "already at minimum" in chapter.text_of("axes.step(")
    rows = chapter.table_of("as_it_is, updates = ")
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
    assert chapter.text_of("at_stage_3 = ").count("✓") == 2
    assert "groups that stage 3 updates one after the other: 1, with sub_group_size 5" in (
        chapter.text_of("(round_robin, _)")
    )


def test_keys_of_activation_checkpointing_depend_on_each_other(chapter):
    code = "checked = launch(try_checkpoint_sections"
    seen, waits = zip(*[tuple(row.values())[1:] for row in chapter.table_of(code)], strict=True)
    assert seen[0] == seen[5] == "ok"
    assert seen[1].startswith("AssertionError: Contiguous Checkpointing is only available with")
    assert seen[2].startswith("AssertionError: Must specify the number of layers")
    assert seen[3] == "ok, inputs in one buffer: 4"
    assert seen[4] == "IndexError: list index out of range"
    assert waits == ("0", "0", "0", "0", "0", "16")
    assert "| backward: " in chapter.text_of(code)


def test_the_engines_instruments_agree_with_the_recorded_calls(chapter):
    printed = chapter.text_of("wanted, used, counted = ")
    assert "DeepSpeed would choose gloo, PyTorch's group uses gloo" in printed
    assert "bwd_allreduce: " in printed
    assert chapter.text_of("counted_flops = ").count("✓") == 2


def test_a_universal_checkpoint_loads_and_a_missing_one_is_silent(chapter):
    printed = chapter.text_of("run = launch(save_and_load_engine")
    assert "client_state: 1" in printed
    assert "✓ 2 ranks to 2" in printed
    printed = chapter.text_of("on_4 = launch(load_universal")
    assert printed.count("✓") == 2
    assert "position: 1" in printed
    assert "returned None and None" in chapter.text_of("/typo")


def test_deepspeeds_launcher_reads_a_hostfile(chapter):
    printed = chapter.text_of('"deepspeed.launcher.runner"')
    assert [f"RANK={r} LOCAL_RANK={r} WORLD_SIZE=2" in printed for r in (0, 1)] == [True, True]
    printed = chapter.text_of("launch(command_for")
    assert "pdsh -S -f 1024 -w node-a,node-b" in printed
    assert "--node_rank=%n --master_addr=node-a" in printed
    assert "does not exist: None" in printed


def test_stages_2_and_3_exclude_pipelines(chapter):
    rows = chapter.table_of("pipelines = launch(")
    gives = [row["a PipelineModule gives"] for row in rows]
    assert gives[:2] == ["PipelineEngine"] * 2
    assert all("incompatible with pipeline parallelism" in each for each in gives[2:])


def test_each_step_of_the_port_makes_the_calls_of_the_handwritten_loop(chapter):
    assert "backward, and divided too" in chapter.text_of("predicted_wrong.compare")
    assert chapter.text_of("right = [name for name in VERSIONS").count("✓") == 2
    rows = chapter.table_of("right = [name for name in VERSIONS")
    samples = {row["version"]: row["samples of rank 0"] for row in rows}
    assert samples.pop("loader, and the sampler kept") == "8"
    assert set(samples.values()) == {"16"}
    printed = chapter.text_of('calls_of_rank_0("+ accumulate"))')
    assert printed.count("all_reduce") == 2
    assert chapter.text_of("def mean_losses").count("✓") == 1


def test_accelerate_steps_the_scheduler_and_autocast_changes_a_matmul(chapter):
    assert chapter.text_of("launch(own_scheduler").count("✓") == 2
    assert "✓ autocast changes the matmul only" in chapter.text_of("launch(device_and_dtypes")


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


def test_a_checkpoint_lacks_the_order_of_samples_and_a_missing_key_raises_nothing(chapter):
    assert "model.safetensors" in chapter.text_of("accelerate_disk = ")
    assert "pytorch_model.bin" in chapter.text_of("accelerate_disk = ")
    restored = chapter.text_of("the weights are those that were saved")
    assert "measured [False, False]" in restored
    assert 'Missing key(s) in state_dict: "2.weight"' in chapter.text_of("still_random, error = ")


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
    assert "parameters kept whole, of 4" in chapter.text_of('kept whole:", engine')


def test_accelerate_never_selects_fsdp_on_cpus(chapter):
    rows = chapter.table_of("run = launch(try_fsdp")
    assert [row["distributed_type"] for row in rows] == ["MULTI_CPU", "NO"]
    assert {row["parameters"] for row in rows} == {"Parameter"}


@pytest.mark.browser
def test_reopened_pictures_fit(chapter, loaded_lab, artifacts):
    """Only plots and predictions: the chapter has no other widgets."""
    assert try_the_pictures(chapter, loaded_lab, artifacts) == set()
