"""Published training runs: what was measured, and by which convention.

Times are published, or follow from the published operations per second and the source's own formula
(Narayanan's 96·BsLh²·(…), which counts recomputation; Korthikanti's 72·BsLh²·(…), which does not).
Where a source does not say how activations were recomputed, the docstring does.
"""

from __future__ import annotations

from dataclasses import replace

from shardlab.estimate.devices import DEVICES
from shardlab.plan.calibrate import Measured
from shardlab.plan.known_models import MODELS
from shardlab.plan.layouts import Layout
from shardlab.plan.model import Cluster, Model
from shardlab.plan.step import Constants

A100_FLOPS_PER_S = DEVICES["A100"].flops_per_s


def gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200) -> Model:
    return Model(layers, width, heads, sequence=2048, vocabulary=vocabulary)


def _seconds(model: Model, batch: int, devices: int, per_s: float, convention: int) -> float:
    """Of a step with ``per_s`` operations per second and device; convention 96 or 72."""
    h, layers, s, vocabulary = model.width, model.layers, model.sequence, model.vocabulary
    logits = vocabulary / ((16 if convention == 96 else 12) * layers * h)
    step_flops = convention * batch * s * layers * h**2 * (1 + s / (6 * h) + logits)
    return step_flops / (devices * per_s)


def _ptd_p() -> list[Measured]:
    """Narayanan et al., SC 2021, table 1, and the 175B rows of its table 2.

    A100-80GB; full recomputation, no sequence parallelism, no sharded optimizer.  Micro-batch and
    chunks of table 1 are from the authors' scripts (sc21/run_table_1.sh); in table 2, two chunks
    and full recomputation are assumed.
    """
    rows = [  # layers, width, heads, t, p, d, batch, micro-batch, chunks, TFLOP/s of each GPU
        (24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        (30, 3072, 32, 2, 1, 32, 512, 16, 1, 138),
        (36, 4096, 32, 4, 1, 32, 512, 16, 1, 142),
        (40, 6144, 48, 8, 1, 32, 1024, 8, 1, 135),
        (48, 8192, 64, 8, 2, 32, 1536, 4, 1, 138),
        (60, 10240, 80, 8, 4, 32, 1792, 2, 3, 140),
        (80, 12288, 96, 8, 8, 24, 2304, 2, 2, 148),
        (96, 16384, 128, 8, 16, 15, 2160, 1, 2, 155),
        (105, 20480, 128, 8, 35, 9, 2520, 1, 3, 163),
        (128, 25600, 160, 8, 64, 6, 3072, 1, 1, 163),
        (96, 12288, 96, 8, 12, 4, 1536, 1, 2, 153),
        (96, 12288, 96, 8, 12, 8, 1536, 1, 2, 149),
        (96, 12288, 96, 8, 12, 16, 1536, 1, 2, 141),
    ]
    runs = []
    for layers, width, heads, t, p, d, batch, micro_batch, chunks, tflops in rows:
        model, devices = gpt(layers, width, heads), t * p * d
        layout = Layout(d, t, p, 1, micro_batch, chunks, 0, "full")
        seconds = _seconds(model, batch, devices, tflops * 1e12, 96)
        name = f"PTD-P, {model.parameters / 1e9:.1f}B on {devices}"
        cluster = Cluster.of("A100", devices)
        runs.append(Measured(name, model, cluster, batch, layout, seconds))
    return runs


def _korthikanti() -> list[Measured]:
    """Korthikanti et al. 2022, table 5: full recomputation, against selective with sequence
    parallelism.  A100-80GB, no data parallelism."""
    rows = [  # layers, width, heads, p, chunks, batch, micro-batch, s with full, s with selective
        (48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
        (96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
        (105, 20480, 128, 35, 3, 280, 1, 49.05, 37.83),
        (128, 25600, 160, 64, 1, 512, 1, 94.42, 71.49),
    ]
    runs = []
    for layers, width, heads, p, chunks, batch, micro_batch, full_s, selective_s in rows:
        model, devices = gpt(layers, width, heads), 8 * p
        for recompute, seconds in (("full", full_s), ("selective", selective_s)):
            sharded = recompute == "selective"
            layout = Layout(1, 8, p, 1, micro_batch, chunks, 0, recompute, sharded)
            name = f"Korthikanti, {model.parameters / 1e9:.0f}B, {recompute}"
            cluster = Cluster.of("A100", devices)
            runs.append(Measured(name, model, cluster, batch, layout, seconds))
    return runs


def _megascale() -> list[Measured]:
    """Jiang et al., NSDI 2024, table 2: its baseline, Megatron-LM, 175B.

    Assumed, as not stated: selective recomputation with sequence parallelism, a micro-batch of 1.
    """
    rows = [  # batch, GPUs, seconds
        (768, 256, 40.0), (768, 512, 21.2), (768, 768, 15.2), (768, 1024, 11.9),
        (6144, 3072, 29.02), (6144, 6144, 14.78), (6144, 8192, 12.24), (6144, 12288, 8.57),
    ]  # fmt: skip
    model = gpt(96, 12288, 128, vocabulary=64_000)
    return [
        Measured(
            f"MegaScale's baseline, 175B on {devices}", model, Cluster.of("A100", devices), batch,
            Layout(devices // 64, 8, 8, 1, 1, 6, 0, "selective", True), seconds,
        )
        for batch, devices, seconds in rows
    ]  # fmt: skip


def _megascale_530b() -> list[Measured]:
    """The same table's rows of 530B, from their MFU.

    Its model is Korthikanti's 530B (but for 160 heads in place of 128), which had an MFU of 54.2 %
    on 2,240 GPUs (their abstract); this table has 49.2 %.
    """
    model = gpt(105, 20480, 160, vocabulary=64_000)
    return [
        Measured(
            f"MegaScale's baseline, 530B on {devices}", model, Cluster.of("A100", devices), devices,
            Layout(devices // 280, 8, 35, 1, 1, 3, 0, "selective", True),
            _seconds(model, devices, devices, mfu * A100_FLOPS_PER_S, 72),
        )
        for devices, mfu in ((2240, 0.492), (4480, 0.488), (11200, 0.482))
    ]  # fmt: skip


def _bloom() -> list[Measured]:
    """BigScience 2022, training notes: splits of a model of 181B tried on 384 A100-80GB.

    ZeRO-1, full recomputation, bf16; four links of Omni-Path (100 Gb/s) for the eight GPUs of a
    node.  By time, fastest first.
    """
    rows = [  # d, t, p, micro-batch, batch, seconds
        (8, 4, 12, 2, 2048, 110.48), (16, 4, 6, 2, 2048, 111.71), (8, 4, 12, 4, 2048, 111.89),
        (16, 2, 12, 2, 2048, 112.50), (6, 8, 8, 4, 2016, 113.16), (8, 8, 6, 4, 2048, 114.11),
        (12, 8, 4, 4, 2016, 114.81), (4, 8, 12, 4, 2048, 117.07), (16, 4, 6, 4, 2048, 117.11),
        (8, 2, 24, 1, 2048, 119.53), (8, 2, 24, 2, 2048, 122.75), (12, 8, 4, 2, 2016, 125.52),
        (4, 8, 12, 2, 2048, 128.82), (4, 4, 24, 1, 2048, 130.60), (24, 8, 2, 2, 2016, 136.13),
        (24, 8, 2, 1, 2016, 145.45),
    ]  # fmt: skip
    return [
        Measured(
            f"BLOOM, data {d}, tensor {t}, pipeline {p}, micro-batch {micro_batch}",
            BLOOM_181B, BLOOM_CLUSTER, batch,
            Layout(d, t, p, 1, micro_batch, 1, 1, "full"), seconds,
        )
        for d, t, p, micro_batch, batch, seconds in rows
    ]  # fmt: skip


def _zero_3() -> list[Measured]:
    """Narayanan et al., table 2: ZeRO-3 without model parallelism (DeepSpeed)."""
    rows = [  # layers, width, heads, GPUs, batch, micro-batch, TFLOP/s of each GPU
        (96, 12288, 96, 384, 1536, 4, 144), (96, 12288, 96, 768, 1536, 2, 88),
        (96, 12288, 96, 1536, 1536, 1, 44), (105, 20480, 128, 640, 2560, 4, 138),
        (105, 20480, 128, 1120, 2240, 2, 98), (105, 20480, 128, 2240, 2240, 1, 48),
    ]  # fmt: skip
    runs = []
    for layers, width, heads, devices, batch, micro_batch, tflops in rows:
        model = gpt(layers, width, heads)
        layout = Layout(devices, 1, 1, 1, micro_batch, 1, 3, "full")
        name = f"ZeRO-3, {model.parameters / 1e9:.0f}B on {devices}"
        seconds = _seconds(model, batch, devices, tflops * 1e12, 96)
        cluster = Cluster.of("A100", devices)
        runs.append(Measured(name, model, cluster, batch, layout, seconds))
    return runs


def _llama_3() -> list[Measured]:
    """Meta 2024, table 4: 405B in bf16 on H100s.

    Operations counted as 6N + 12Lhs per token; TFLOP/s are rounded.  Assumed: a micro-batch of 1,
    four chunks, no recomputation, sequence parallelism, FSDP that gathers once a step (stage 2).
    """
    rows = [  # GPUs, context, data, sequence, batch per data-parallel group, TFLOP/s
        (8192, 1, 64, 8192, 32, 430), (16384, 1, 128, 8192, 16, 400),
        (16384, 16, 8, 131072, 16, 380),
    ]  # fmt: skip
    runs = []
    for devices, context, data, sequence, each, tflops in rows:
        model = replace(MODELS["llama-3-405b"], sequence=sequence)
        layout = Layout(data, 8, 16, context, 1, 4, 2, "none", True)
        operations = 6 * model.product_parameters + 12 * model.layers * model.width * sequence
        seconds = operations * each * data * sequence / (devices * tflops * 1e12)
        name = f"Llama 3, 405B on {devices}, {sequence:,} tokens"
        runs.append(
            Measured(name, model, Cluster.of("H100", devices), each * data, layout, seconds)
        )
    return runs


def _torchtitan() -> list[Measured]:
    """torchtitan's performance pages (December 2024, June 2025): Llama 3.1 in bf16, H100 at 500 W.

    FSDP, for 70B with tensor parallelism; one micro-batch a step; sequence 8192 by its
    configurations.  Its "selective" activation checkpointing recomputes more than attention.
    """
    rows = [  # model, data, tensor, micro-batch, recomputation, tokens per second and GPU
        ("llama-3-8b", 8, 1, 2, "selective", 5762), ("llama-3-8b", 128, 1, 2, "selective", 5605),
        ("llama-3-70b", 32, 8, 16, "full", 597),
    ]  # fmt: skip
    return [
        Measured(
            f"torchtitan, {name} on {data * t}", MODELS[name],
            Cluster.of("H100", data * t), data * each,
            Layout(data, t, 1, 1, each, 1, 3, recompute, t > 1),
            data * each * MODELS[name].sequence / (tokens_per_s * data * t),
        )
        for name, data, t, each, recompute, tokens_per_s in rows
    ]  # fmt: skip


BLOOM_181B = Model(layers=72, width=14336, heads=64, sequence=2048, vocabulary=250_880)
BLOOM_CLUSTER = Cluster.of("A100", 384, network_bytes_per_s=6.25e9)
PTD_P, KORTHIKANTI = _ptd_p(), _korthikanti()
MEGASCALE, MEGASCALE_530B = _megascale(), _megascale_530b()
BLOOM, ZERO_3 = _bloom(), _zero_3()
LLAMA_3, TORCHTITAN = _llama_3(), _torchtitan()

# calibrate(PTD_P + KORTHIKANTI), as a test verifies
MEGATRON_A100 = Constants(0.7886, 0.6312e6, 1.2545, 0.6003, 0.6736, 1.947e-3)
