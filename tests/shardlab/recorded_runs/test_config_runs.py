"""The recorded runs of configurations can be read and written."""

from __future__ import annotations

import json

from shardlab.recorded_runs import config_runs


def test_recorded_runs_survive_a_round_trip(tmp_path):
    runs = config_runs.load()
    config_runs.dump(runs, tmp_path / "runs.json")
    assert config_runs.load(tmp_path / "runs.json") == runs
    assert (tmp_path / "runs.json").read_bytes() == config_runs.RECORDED.read_bytes()


def test_a_configuration_is_the_text_of_a_file_and_two_dicts():
    for asked, ran in config_runs.load().values():
        assert "zero_optimization" in json.loads(asked["json_text"])
        assert asked["yaml"]["distributed_type"] == "DEEPSPEED"
        ranks = asked["yaml"]["num_processes"]
        assert ran["global_batch"] == ran["micro_batch"] * ran["accumulation"] * ranks
        samples = asked["script"]["loaders"]["train"] * ran["accumulation"] * ranks
        assert ran["samples"] == samples
