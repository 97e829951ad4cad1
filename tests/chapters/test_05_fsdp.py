"""Chapter 05 runs from top to bottom, and its outputs match its text."""

import re

import pytest
import torch

from shardlab import DeadlockError, data, launch, models
from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("05_fsdp", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 05: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_each_rank_holds_a_quarter_of_everything(chapter):
    answer = chapter.text_of("predicted_states.compare(")
    assert "measured DDP: 12 bytes, FSDP: 3 bytes" in answer  # zero_grad has freed the gradients
    rows = chapter.table_of("for name, held in each.items()")
    assert [list(map(float, list(row.values())[1:])) for row in rows] == [
        [4, 4, 8, 16],
        [1, 1, 2, 4],
    ]
    assert chapter.text_of("for name, held in each.items()").count("✓") == 2


def test_both_training_runs_have_the_same_losses(chapter):
    rows = [[*map(float, [*row.values()][1:])] for row in chapter.table_of("difference = ")]
    assert len(rows) == 2
    assert all(row == pytest.approx(rows[0], abs=2e-5) for row in rows)  # printed to 1e-5
    assert rows[0][:3] != pytest.approx(rows[0][3:], abs=0.01)  # each rank has its own batches
    assert "<svg" in chapter.svg_of("memory_timeline(runs)")


def test_a_model_created_on_meta_takes_its_slice_only(chapter):
    cpu, meta = (float([*row.values()][1]) for row in chapter.table_of("creations = {"))
    assert 4 <= cpu < 4.3
    assert 1 <= meta < 1.05


def test_on_cpus_the_same_seed_gives_equal_slices():
    def reset():
        import torch
        from torch.distributed.fsdp import fully_shard

        with torch.device("meta"):
            layer = fully_shard(torch.nn.Linear(4, 4))
        layer.to_empty(device="cpu")
        torch.manual_seed(0)
        layer.reset_parameters()
        return layer.weight.to_local().detach()

    first, second = launch(reset, world_size=2, device="cpu", quiet=True).outputs
    assert torch.equal(first, second)


def test_calls_and_bytes_of_a_step(chapter):
    ddp, fsdp = chapter.table_of("def sent_and_calls")
    gathers, reduces = "all_gather_single", "reduce_scatter_single"
    assert ddp["sent, in Ψ"] == "1.50"
    assert (ddp[gathers], ddp[reduces]) == ("–", "–")
    assert (fsdp["all_reduce"], fsdp[gathers], fsdp[reduces]) == ("–", "13", "7")
    assert chapter.text_of("fsdp = unit_step(").count("✓") == 3


def test_fsdp_computes_whole_layers_for_a_quarter_of_the_tokens(chapter):
    fsdp, tensor_parallel = chapter.text_of("rank 0 multiplies by").splitlines()[-2:]
    assert fsdp.endswith("weight (384, 96), tokens 32")
    assert tensor_parallel.endswith("weight (96, 96), tokens 128")


def test_its_traffic_does_not_grow_with_tokens(chapter):
    growth = floats(chapter.text_of("growth = [").split("measured")[1])
    assert growth == [1, pytest.approx(16, rel=0.03)]
    assert len(chapter.table_of("for width in (D")) == 3


def test_the_order_of_gathers_and_reductions(chapter):
    order = chapter.text_of("print(order_of(life))\n").splitlines()[0].split(", ")
    forward = [event for block in range(6) for event in ("gather", f"block {block}")]
    backward = ["gather", "gather", *["REDUCE", "gather"] * 4, "REDUCE", "REDUCE"]
    assert order == ["gather root", *forward, *backward, "REDUCE root"]
    assert "measured 13, 7" in chapter.text_of("print(order_of(life))\n")
    assert "first block 5, last the root" in chapter.text_of("predicted_order.compare(")
    assert "<svg" in chapter.svg_of("unit_life(life)")


def test_one_block_is_gathered_at_a_time(chapter):
    assert "measured 6 × 2.81" in chapter.text_of("expected = unit_step(units, 2")


def test_more_collectives_keep_fewer_bytes_gathered(chapter):
    rows = [list(map(float, list(row.values())[1:])) for row in chapter.table_of("rows = {choice")]
    counts, largest, predicted, measured, sent = zip(*rows, strict=True)
    assert counts == (2, 20, 74)
    assert list(largest) == sorted(largest, reverse=True)
    assert list(measured) == sorted(measured, reverse=True)
    assert measured == pytest.approx(predicted, rel=0.01)
    assert measured[0] == 5  # a shard and a full copy
    assert sent[0] < min(sent[1:])
    assert max(sent[1:]) / min(sent[1:]) < 1.02
    assert "measured 5 bytes" in chapter.text_of("predicted_root_only.compare(")
    answer = chapter.text_of("predicted_collectives.compare(")
    assert "counted all-gathers: 49, reduce-scatters: 25" in answer


def test_parameters_that_are_not_freed_are_not_gathered_again(chapter):
    sent = re.findall(
        r"in Ψ: measured (\S+), predicted (\S+)", chapter.text_of("by_reshard.items()")
    )
    assert [tuple(map(float, each)) for each in sent] == [
        (pytest.approx(2.97, abs=0.02),) * 2,
        (pytest.approx(2.25, abs=0.02),) * 2,
        (pytest.approx(2.74, abs=0.02),) * 2,
    ]
    answer = chapter.text_of("predicted_reshard.compare(").split("measured")[1]
    assert floats(answer.replace("2:", ""))[:3] == pytest.approx([2.97, 2.25, 2.74], abs=0.02)
    held = re.findall(r"measured (\S+),", chapter.text_of("def held_after_forward"))
    assert list(map(float, held)) == pytest.approx([3.82, 1.91], abs=0.005)


def test_resharding_to_two_ranks_gathers_within_pairs(chapter):
    printed = chapter.text_of("again = [")
    assert "6 gathers in the group {(0, 1)}" in printed
    rows = [list(map(float, list(row.values())[1:])) for row in chapter.table_of("again = [")]
    assert rows[0] == pytest.approx([0, 1.23, 0, 1.5], abs=0.02)
    assert rows[1] == pytest.approx([1.98, 0, 0.75, 0], abs=0.02)
    assert rows[2] == pytest.approx([0, 1.5, 0, 1.23], abs=0.02)
    assert rows[3] == pytest.approx([0.75, 0, 1.98, 0], abs=0.02)


def test_prefetching_starts_gathers_early(chapter):
    assert "default:   gather root, gather, block 0, gather, block 1" in chapter.text_of("ahead = ")
    assert "one ahead: gather root, gather, gather, block 0, gather" in chapter.text_of("ahead = ")
    assert chapter.text_of("def begun_early").count("(equal)") == 2
    assert "<svg" in chapter.svg_of("timeline(ahead)")


def test_an_optimizer_made_before_sharding_trains_nothing(chapter):
    after, before = (
        list(map(float, list(row.values())[1:]))
        for row in chapter.table_of("launch(train_in_order")
    )
    assert after == sorted(after, reverse=True)
    assert after[0] > after[2] + 0.1
    assert before == [before[0]] * 3


def test_an_optimizer_after_a_forward_misses_the_root():
    """It would hold the block's two parameters, and neither of the root's."""

    def forward_first():
        import torch
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        fully_shard(model[0])
        fully_shard(model)
        model(torch.ones(1, 4))
        held = {id(parameter) for parameter in model.parameters()}
        model(torch.ones(1, 4)).sum().backward()
        return [id(parameter) in held for parameter in model.parameters()]

    run = launch(forward_first, world_size=2, device="cpu", quiet=True)
    assert run.outputs == [[True, True, False, False]] * 2


def test_ddp_broadcasts_buffers_in_evaluation_too():
    def evaluate_on_rank_0():
        import torch
        import torch.distributed as dist

        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4)).eval()
        if dist.get_rank() == 0:
            ddp(torch.ones(2, 4))

    with pytest.raises(DeadlockError, match="broadcast"):
        launch(evaluate_on_rank_0, world_size=2, device="cpu", quiet=True)


def test_without_a_root_embeddings_differ(chapter):
    with_root, without = (
        float(row.split("by ")[1])
        for row in chapter.text_of("launch(train_without_root").splitlines()
        if "differ" in row
    )
    assert with_root == 0
    assert without > 1e-3


def test_the_norm_of_a_shard_is_not_the_gradient_norm(chapter):
    rows = chapter.table_of("def norms(batch)")
    (_, slice_0, all_0), (_, slice_1, all_1) = (map(float, row.values()) for row in rows)
    assert all_0 == all_1
    assert slice_0 != slice_1
    assert all_0 == pytest.approx((slice_0**2 + slice_1**2) ** 0.5, rel=1e-3)


def test_tied_weights_need_one_unit(chapter):
    two, one = (list(row.values()) for row in chapter.table_of("launch(train_tied"))
    assert two[:2] == ["two", "False"]
    assert two[2].endswith("is shared with one managed by another FSDP group")
    assert one == ["one", "True", "none"]


def test_a_checkpointed_unit_is_gathered_once_in_backward():
    def step(batch):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import fully_shard

        model = models.gpt("0.1M")
        for i, block in enumerate(list(model.blocks)):
            model.blocks[i] = fully_shard(checkpoint_wrapper(block))
        fully_shard(model)(*batch).backward()

    batches = [data.batch(0, 2, 16, rank, 2) for rank in range(2)]
    run = launch(step, inputs=batches, world_size=2, device="cpu", quiet=True)
    ops = [call.op for call in run.calls if call.rank == 0]
    assert ops.count("all_gather_single") == 1 + 2 * 2  # the root once, two blocks twice


def test_a_method_sees_shards_unless_it_is_registered(chapter):
    printed = chapter.text_of("launch(call_a_method")
    assert "\naten.embedding.default got mixed torch.Tensor and DTensor\n" in printed
    assert "✓ after register_fsdp_forward_method" in printed


def test_a_dimension_of_50_rows_is_padded(chapter):
    rows = [[*row.values()] for row in chapter.table_of("def one_layer")]
    assert rows == [["4", "52", "4%"], ["8", "56", "12%"], ["64", "64", "28%"]]
    assert "measured 1.04" in chapter.text_of("def one_layer")


def test_evaluation_on_rank_0_alone_hangs(chapter):
    printed = chapter.text_of("except DeadlockError")
    assert "rank 1 finished without entering all_gather_single, where rank 0 waits" in printed


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {
        "memory-timeline",
        "unit-life",
        "timeline",
    }
