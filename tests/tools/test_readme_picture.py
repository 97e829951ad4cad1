"""The README's picture shows the measured bytes, in the requested format."""

import numpy as np
import pytest
from matplotlib.text import Text

from shardlab.run import Run, Traffic
from tools import readme_picture


def ring_run(sent_bytes=6_293_000):
    sent = np.zeros((4, 4), dtype=np.int64)
    for rank in range(4):
        sent[rank, rank - 1] = sent_bytes
    traffic = Traffic(sent, "counted by a test")
    return Run(4, "cpu", "a test", [None] * 4, [""] * 4, [""] * 4, traffic, [], 0.1, 0.2)


def test_shows_measured_and_predicted_bytes():
    texts = [text.get_text() for text in readme_picture.figure(ring_run()).findobj(Text)]
    assert texts.count("6,293,000 bytes") == 4
    assert texts.count("6,291,456 bytes") == 4  # 2(N − 1)/N · S
    assert texts.count("6.0 MiB") == 8  # four arrows, four cells
    assert "Bytes counted by a test" in texts


@pytest.mark.ranks
@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("new/b.svg", b"<?xml")])
def test_draws_a_real_run_to_a_file(tmp_path, capsys, name, start):
    path = tmp_path / name
    assert readme_picture.main([str(path)]) == 0
    assert path.read_bytes().startswith(start)
    assert "4 ranks" in capsys.readouterr().out


def test_an_unknown_suffix_raises_before_anything_runs(tmp_path, capsys):
    assert readme_picture.main([str(tmp_path / "a.gif")]) == 2
    assert ".png or .svg" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
