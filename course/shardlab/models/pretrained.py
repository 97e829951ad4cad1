"""A small GPT trained on Python's documentation: real weights, to fine-tune and to quantize.

``pretrained_gpt.safetensors`` is the result of ``python -m shardlab.models.pretrained``: minutes
of training on two CPU cores, which no notebook should repeat.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from shardlab import data, models

CONFIG = models.SIZES["0.3M"]
WEIGHTS = Path(__file__).with_name("pretrained_gpt.safetensors")
STEPS, BATCH, PEAK_LR = 2000, 16, 3e-3


def gpt() -> models.GPT:
    """The trained model, in fp32: its weights are stored in fp16."""
    model = models.GPT(CONFIG)
    model.load_state_dict(safetensors.torch.load_file(WEIGHTS))
    return model


def train(steps: int = STEPS) -> models.GPT:
    """Train from random weights with AdamW, a warm-up, and a linear decay to 0."""
    torch.manual_seed(0)
    model = models.GPT(CONFIG)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 1 - step / steps)
    )
    for step in range(steps):
        loss = model(*data.batch(step, BATCH, CONFIG.context))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
    return model


if __name__ == "__main__":
    weights = {name: value.half() for name, value in train().state_dict().items()}
    safetensors.torch.save_file(weights, WEIGHTS)
