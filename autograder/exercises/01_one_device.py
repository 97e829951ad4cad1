"""Lab 01: the bytes of a step, accumulation, loss scaling and master weights."""

from __future__ import annotations

from autograder.exercise import Case, Exercise
from autograder.exercises import accumulation, loss_scaling, master_weights, step_bytes
from autograder.exercises.accumulation import batches_case
from autograder.exercises.loss_scaling import scaler_case
from autograder.exercises.master_weights import masters_case
from autograder.exercises.step_bytes import case_of
from autograder.guest.library import borrowed

STEP_BYTES = Exercise(
    name="one_device.step_bytes",
    points=5,
    cases=(
        case_of("fp32, Adam"),
        case_of("a larger batch, plain SGD", batch_size=200, optimizer="sgd"),
        case_of("tied embeddings, momentum", tied=True, optimizer="momentum"),
        case_of("GELU", activation="gelu"),
        case_of("bf16 with fp32 masters, Adam", precision="bf16"),
        Case("other models and batches", 1, {"draws": 12}, hidden=True),
        case_of(
            "tied, bf16, momentum",
            hidden=True,
            tied=True,
            precision="bf16",
            optimizer="momentum",
            activation="gelu",
        ),
        case_of("bf16, plain SGD", hidden=True, precision="bf16", optimizer="sgd", width=16),
        case_of("another width, Adam", hidden=True, width=30, vocabulary=70, batch_size=31),
        case_of("no layer between", hidden=True, layers=0, tied=True),
    ),
    draw=step_bytes.draw_settings,
    drive=step_bytes.drive_step_bytes,
    expect=step_bytes.expect_step_bytes,
    tolerance=step_bytes.TOLERANCE,
    allows=frozenset(),
    diagnoses=(borrowed, step_bytes.wrong_bytes),
)

ACCUMULATE = Exercise(
    name="one_device.accumulate",
    points=5,
    cases=(
        batches_case("four alike", [(4, 16)] * 4, [1.0] * 4),
        batches_case("lengths differ", [(4, 8), (4, 32), (4, 20)], [1.0] * 3),
        batches_case("some targets are -100", [(4, 16)] * 4, [1.0, 0.25, 0.5, 0.75]),
        batches_case("a micro-batch alone", [(6, 16)], [0.5], hidden=True),
        batches_case(
            "sizes and shares differ",
            [(60, 30), (90, 14), (128, 32), (70, 7), (96, 32)],
            [0.9, 0.2, 1.0, 0.5, 0.1],
            hidden=True,
        ),
        batches_case("nothing counts in one", [(3, 24)] * 3, [0.5, 0.0, 1.0], hidden=True),
    ),
    draw=accumulation.draw_batches,
    drive=accumulation.drive_accumulate,
    expect=accumulation.expect_accumulate,
    tolerance=accumulation.TOLERANCE,
    budgets=(accumulation.ONE_AT_A_TIME, accumulation.SEEN),
    allows=frozenset(),
    diagnoses=(
        accumulation.wrong_number_of_steps,
        accumulation.undefined_mean,
        accumulation.wrongly_weighed,
        accumulation.wrong_loss,
        accumulation.holds_them_all,
    ),
    memory=True,
)

DYNAMIC_LOSS_SCALER = Exercise(
    name="one_device.DynamicLossScaler",
    points=6,
    cases=(
        scaler_case("1 rank, overflows twice", 1, {2: (0, "inf"), 6: (0, "inf")}),
        scaler_case("1 rank, a nan", 1, {4: (0, "nan")}),
        scaler_case("3 ranks, rank 1 overflows", 3, {3: (1, "inf"), 5: (1, "inf")}),
        scaler_case("4 ranks, a nan on rank 2", 4, {1: (2, "nan"), 8: (0, "inf")}),
        scaler_case("2 ranks, nothing overflows", 2, {}, scale=2.0**13, growth_interval=5),
        scaler_case(
            "5 ranks, overflows in a row",
            5,
            {2: (4, "inf"), 3: (3, "nan"), 4: (0, "inf")},
            hidden=True,
        ),
        scaler_case(
            "2 ranks, another interval",
            2,
            {1: (1, "inf"), 6: (0, "nan"), 7: (1, "inf")},
            steps=16,
            scale=2.0**15,
            growth_interval=4,
            hidden=True,
        ),
        scaler_case(
            "3 ranks, a small scale",
            3,
            {5: (2, "nan")},
            scale=4.0,
            growth_interval=2,
            hidden=True,
        ),
    ),
    draw=loss_scaling.draw_steps,
    drive=loss_scaling.drive_scaler,
    expect=loss_scaling.expect_scaler,
    budgets=(loss_scaling.ONE_FLAG,),
    allows=frozenset({"all_reduce"}),
    diagnoses=(
        loss_scaling.sends_gradients,
        loss_scaling.talks_only_in_need,
        loss_scaling.broken_rule,
    ),
    curves=loss_scaling.scales_by_step,
)

SGD_WITH_MASTER_WEIGHTS = Exercise(
    name="one_device.sgd_with_master_weights",
    points=4,
    cases=(
        masters_case("bf16, 200 tiny updates", "bfloat16", 1e-3, 200),
        masters_case("fp16, 400 tiny updates", "float16", 1.2e-4, 400),
        masters_case("bf16, momentum", "bfloat16", 2e-5, 300, momentum=0.99),
        masters_case(
            "bf16, two tensors", "bfloat16", -7e-4, 250, shapes=((4, 6), (5,)), hidden=True
        ),
        masters_case(
            "bf16, two tensors, momentum",
            "bfloat16",
            2.5e-5,
            280,
            momentum=0.99,
            shapes=((3, 7), (2, 2)),
            hidden=True,
        ),
        masters_case("fp16, other updates", "float16", 1e-4, 500, shapes=((3,), (8,)), hidden=True),
    ),
    draw=master_weights.draw_weights,
    drive=master_weights.drive_masters,
    expect=master_weights.expect_masters,
    tolerance=master_weights.TOLERANCE,
    allows=frozenset(),
    diagnoses=(master_weights.wide_weights, master_weights.wrong_updates),
    curves=master_weights.path_of_a_weight,
)

EXERCISES = (STEP_BYTES, ACCUMULATE, DYNAMIC_LOSS_SCALER, SGD_WITH_MASTER_WEIGHTS)
