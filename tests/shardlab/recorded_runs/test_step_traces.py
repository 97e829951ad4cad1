"""Recorded traces: what is written is what is read, and every method has one."""

from __future__ import annotations

from shardlab.recorded_runs import step_traces


def test_traces_survive_a_round_trip(tmp_path):
    traces = step_traces.load()
    step_traces.dump(traces, tmp_path / "traces.json")
    assert step_traces.load(tmp_path / "traces.json") == traces
    assert (tmp_path / "traces.json").read_bytes() == step_traces.RECORDED.read_bytes()


def test_there_is_a_trace_of_each_method():
    traces = step_traces.load()
    assert {method for method, _ in traces.values()} == set(step_traces.METHODS)
    for _, trace in traces.values():
        assert {call["phase"] for call in trace["calls"]} <= {"forward", "backward", "step"}
        assert all(max(call["ranks"]) < trace["world_size"] for call in trace["calls"])
