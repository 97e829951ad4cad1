"""python -m shardlab plan"""

from __future__ import annotations

import pytest

from shardlab.__main__ import main


def plan(*arguments: str) -> int:
    return main(["plan", *arguments])


def test_the_fastest_first(capsys):
    assert plan("--model", "llama-3-8b", "--cluster", "16xH100", "--batch", "64") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("8.0B parameters")
    assert printed.count("not products: ") == 5
    times = [float(line.split()[0]) for line in printed.splitlines() if " s  MFU" in line]
    assert times == sorted(times)


def test_a_model_of_ones_own(capsys):
    model = "layers=12,width=768,heads=12,sequence=1024,vocabulary=50257,experts=8"
    assert plan("--model", model, "--cluster", "4xA100", "--batch", "16", "--count", "1") == 0
    assert capsys.readouterr().out.count("not products: ") == 1


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "words"),
    [
        ("llama-4", "8xH100", "8", "expected one of gpt-3-175b"),
        ("layers=12", "8xH100", "8", "width, heads, sequence, vocabulary missing"),
        ("llama-3-8b,layers=x", "8xH100", "8", "expected NUMBER after one of layers"),
        ("llama-3-8b", "H100", "8", "expected for example 512xH100"),
        ("llama-3-8b", "8xP100", "8", "expected A100 or H100"),
        ("llama-3-8b", "8xH100", "0", "batch=0"),
    ],
)
def test_what_it_cannot_read(capsys, model, cluster, batch, words):
    assert plan("--model", model, "--cluster", cluster, "--batch", batch) == 2
    assert words in capsys.readouterr().err


def test_a_model_that_does_not_fit(capsys):
    assert plan("--model", "llama-3-70b", "--cluster", "8xH100", "--batch", "64") == 1
    assert "The smallest needs" in capsys.readouterr().out


def test_a_batch_that_no_layout_divides(capsys):
    assert plan("--model", "bloom-176b", "--cluster", "13xA100", "--batch", "7") == 1
    assert "No layout divides" in capsys.readouterr().out
