"""python -m shardlab plan: the fastest layouts of a model that fit a cluster, and why"""

from __future__ import annotations

import argparse
import sys

EXAMPLE = "python -m shardlab plan --model llama-3-70b --cluster 512xH100 --batch 1024"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "plan", help="which layouts of a model fit a cluster, and how fast", epilog=EXAMPLE
    )
    command.add_argument(
        "--model", required=True,
        help="a name (llama-3-8b), a name with changes (llama-3-8b,sequence=32768), or "
        "layers=…,width=…,heads=…,sequence=…,vocabulary=… (also mlp_width, kv_heads, gated=1, "
        "experts, experts_per_token)",
    )  # fmt: skip
    command.add_argument("--cluster", required=True, help="512xH100: eight in each node")
    command.add_argument("--batch", type=int, required=True, help="sequences in a step")
    command.add_argument("--count", type=int, default=5, help="layouts to show (5)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from shardlab.plan.known_models import model_of
    from shardlab.plan.model import Cluster
    from shardlab.plan.plans import plan
    from shardlab.plan.published import MEGATRON_A100

    try:
        model = model_of(arguments.model)
        number, _, device = arguments.cluster.partition("x")
        if not number.isdecimal() or not int(number):
            raise ValueError(f"--cluster {arguments.cluster}: expected for example 512xH100")
        cluster = Cluster.of(device, int(number))
        plans = plan(model, cluster, arguments.batch, constants=MEGATRON_A100)
    except ValueError as error:
        print(f"{error}\nfor example: {EXAMPLE}", file=sys.stderr)
        return 2
    print(f"{model.parameters / 1e9:.1f}B parameters, {len(plans):,} layouts, of which fit: "
          f"{plans.fits.sum():,}")  # fmt: skip
    if not len(plans):
        print(f"No layout divides {arguments.batch} sequences, {model.layers} layers and "
              f"{model.heads} heads among {cluster.devices} devices.")  # fmt: skip
        return 1
    shown = plans.best(arguments.count)
    if not shown:
        least = plans[int(plans.total_bytes.argmin())]
        print(f"The smallest needs {least.total_bytes / 1e9:.0f} GB on a device: {least.layout}")
        return 1
    for each in shown:
        parts = sorted(each.parts_s.items(), key=lambda item: -item[1])
        worst = [f"{name} {100 * s / each.step_s:.0f} %" for name, s in parts if name != "products"]
        print(f"\n{each.step_s:8.2f} s  MFU {100 * each.mfu:.0f} %  "
              f"{each.total_bytes / 1e9:5.1f} GB  {each.layout}")  # fmt: skip
        print(f"            not products: {', '.join(worst[:3])}")
    if faster := plans.fastest_that_does_not_fit():
        print(f"\nFaster, but does not fit: {faster.step_s:.2f} s with "
              f"{faster.total_bytes / 1e9:.0f} GB, {faster.layout}")  # fmt: skip
    print("\nSeconds by constants fitted to Megatron-LM on A100s (shardlab.plan.published), with a "
          "mean error of 4 %\non runs not fitted; calibrate them on a few steps of your own: "
          "shardlab.plan.calibrate.")  # fmt: skip
    return 0
