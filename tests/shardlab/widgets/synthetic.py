"""Synthetic runs, for testing pictures without starting ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardlab.run import Call, Links, MeasuredBlock, Run, Span, Traffic
from shardlab.run.live_memory import CATEGORIES, Memory, Phase, RankMemory

STEP_S = 0.001
MIB = 2**20


def make_run(
    world_size: int,
    calls: list[Call],
    sent_bytes: np.ndarray | None = None,
    blocks: tuple[MeasuredBlock, ...] = (),
) -> Run:
    if sent_bytes is None:
        sent_bytes = np.zeros((world_size, world_size), dtype=np.int64)
        for call in calls:
            if call.op == "send" and call.peer is not None:
                sent_bytes[call.rank, call.peer] += call.bytes
    return Run(
        world_size=world_size,
        device="cpu",
        device_reason="a synthetic run",
        outputs=[None] * world_size,
        stdout=[""] * world_size,
        stderr=[""] * world_size,
        traffic=Traffic(sent_bytes, "TCP_INFO, a synthetic run", blocks),
        calls=calls,
        startup_s=0.1,
        wall_s=0.2,
    )


def p2p(
    op: str,
    rank: int,
    peer: int,
    numel: int,
    *,
    start_s: float,
    end_s: float | None,
    seq: int = 0,
    offset: int = 0,
    storage_numel: int | None = None,
    world_size: int = 4,
    code: str = "",
    source: str = "cell 5, line 3",
) -> Call:
    """A send or recv of ``numel`` float32 elements."""
    return Call(
        rank=rank,
        op=op,
        bytes=4 * numel,
        peer=peer,
        group=tuple(range(world_size)),
        start_s=start_s,
        end_s=end_s,
        source=source,
        seq=seq,
        dtype="float32",
        shape=(numel,),
        offset=offset,
        storage_numel=numel if storage_numel is None else storage_numel,
        code=code,
    )


def collective(
    op: str, rank: int, world_size: int, *, start_s: float, end_s: float | None, seq: int = 0
) -> Call:
    return Call(
        rank=rank,
        op=op,
        bytes=4096,
        peer=None,
        group=tuple(range(world_size)),
        start_s=start_s,
        end_s=end_s,
        source="cell 6, line 2",
        seq=seq,
        dtype="float32",
        shape=(1024,),
        offset=0,
        storage_numel=1024,
        code="dist.all_reduce(x)",
    )


def ring_all_reduce(world_size: int, chunk_numel: int = 262_144, *, clones: bool = False) -> Run:
    """The recorded calls of a ring written with isend and recv on views of one buffer.

    Reduce-scatter receives into a scratch tensor, all-gather directly into the buffer.
    With ``clones`` every send is of a clone, so that no offset shows which chunk it was.
    """
    n = world_size
    whole = n * chunk_numel
    calls = []
    for step in range(2 * (n - 1)):
        gathering = step >= n - 1
        k = step - (n - 1) if gathering else step
        for rank in range(n):
            right, left = (rank + 1) % n, (rank - 1) % n
            send_chunk = (rank + 1 - k) % n if gathering else (rank - k) % n
            recv_chunk = (send_chunk - 1) % n
            start_s = step * STEP_S + rank * 1e-5
            end_s = start_s + 0.7 * STEP_S
            recv_view = (
                {}
                if clones or not gathering
                else {
                    "offset": recv_chunk * chunk_numel,
                    "storage_numel": whole,
                }
            )
            send_view = (
                {} if clones else {"offset": send_chunk * chunk_numel, "storage_numel": whole}
            )
            common = {"seq": step, "world_size": n, "end_s": end_s}
            calls.append(
                p2p(
                    "send",
                    rank,
                    right,
                    chunk_numel,
                    start_s=start_s,
                    code="sending = dist.isend(chunks[i], right)",
                    **send_view,
                    **common,
                )
            )
            calls.append(
                p2p(
                    "recv",
                    rank,
                    left,
                    chunk_numel,
                    start_s=start_s + 2e-5,
                    code="dist.recv(inbox, left)",
                    source="cell 5, line 4",
                    **recv_view,
                    **common,
                )
            )
    half = (n - 1) * STEP_S
    per_rank = (n - 1) * chunk_numel * 4
    blocks = tuple(
        MeasuredBlock(
            label,
            rank,
            at,
            at + half,
            tuple(per_rank if peer == (rank + 1) % n else 0 for peer in range(n)),
        )
        for label, at in (("reduce-scatter", 0.0), ("all-gather", half))
        for rank in range(n)
    )
    return make_run(n, calls, blocks=blocks)


def hub(world_size: int, numel: int = 1024) -> Run:
    """Every rank sends a whole tensor to rank 0, which replies to one rank after another."""
    calls = []
    for rank in range(1, world_size):
        times = {"seq": 0, "world_size": world_size}
        calls.append(p2p("send", rank, 0, numel, start_s=0.0, end_s=rank * STEP_S, **times))
        calls.append(
            p2p("recv", 0, rank, numel, start_s=(rank - 1) * STEP_S, end_s=rank * STEP_S, **times)
        )
    for rank in range(1, world_size):
        start = (world_size + rank) * STEP_S
        times = {"start_s": start, "end_s": start + STEP_S, "seq": 0, "world_size": world_size}
        calls.append(p2p("send", 0, rank, numel, **times))
        calls.append(p2p("recv", rank, 0, numel, **times))
    return make_run(world_size, calls)


def dense(world_size: int) -> Run:
    """Every rank sends a different number of bytes to every other rank."""
    sent = np.arange(world_size**2, dtype=np.int64).reshape(world_size, world_size) * 4096
    np.fill_diagonal(sent, 0)
    return make_run(world_size, [], sent)


def training(world_size: int = 1, *, layers: int = 6, steps: int = 2, unit_bytes: int = MIB) -> Run:
    """A run with ``memory``: a model of ``layers`` layers, trained for ``steps`` steps.

    Each layer has one unit of parameters, one of gradients, two of optimizer states from the first
    step on, three of activations (times 1 + r on rank r) and a short-lived bucket.
    """
    run = make_run(world_size, [])
    run._memory = Memory(
        [rank_memory(rank, layers, steps, unit_bytes) for rank in range(world_size)]
    )
    return run


def rank_memory(rank: int, layers: int, steps: int, unit_bytes: int) -> RankMemory:
    now = dict.fromkeys(CATEGORIES, 0)
    times, rows = [0.5], [dict(now)]
    phases: list[Phase] = []

    def change(category: str, units: int, after_s: float = STEP_S) -> None:
        now[category] += units * unit_bytes * (1 + rank * (category == "activations"))
        times.append(times[-1] + after_s)
        rows.append(dict(now))

    def phase(name: str, since: int) -> None:
        highest = max(rows[since:], key=lambda row: sum(row.values()))
        phases.append(Phase(name, times[since], times[-1], dict(now), highest))

    for _ in range(layers):
        change("parameters", 1, 0.02)
    for step in range(steps):
        step_start = len(times) - 1
        change("other", 1)
        since = len(times) - 1
        for _ in range(layers):
            change("activations", 3)
        phase("forward", since)
        since = len(times) - 1
        for _ in range(layers):
            change("gradients", 1)
            change("buckets", 1, STEP_S / 4)
            change("buckets", -1, STEP_S / 4)
            change("activations", -3)
        phase("backward", since)
        since = len(times) - 1
        for _ in range(layers):
            change("optimizer", 0 if step else 2, STEP_S / 3)
        phase("step", since)
        change("gradients", -layers)
        change("other", -1)
        phase(f"training step {step}", step_start)
    peak = max(range(len(rows)), key=lambda index: sum(rows[index].values()))
    return RankMemory(
        times_s=np.array(times),
        live_bytes={name: np.array([row[name] for row in rows]) for name in CATEGORIES},
        phases=tuple(phases),
        peak_s=times[peak],
        peaks={name: max(row[name] for row in rows) for name in CATEGORIES},
        at_peak=rows[peak],
    )


def on_nodes(run: Run, nodes: int) -> Run:
    """The same run with its ranks on several nodes."""
    of_rank = tuple(rank * nodes // run.world_size for rank in range(run.world_size))
    return replace(run, traffic=replace(run.traffic, nodes=of_rank))


def with_links(run: Run, nodes: int, bits_per_s: float | None = 12e9) -> Run:
    """The same run on several nodes, each of whose links was read every 0.2 ms. Each node sends
    its bytes to others at a steady rate, then nothing in the last fifth of the run."""
    run = on_nodes(run, nodes)
    between = run.traffic.between_nodes
    own = between.diagonal()
    end_s = max(call.end_s or 0.0 for call in run.calls)
    time_s = np.linspace(-STEP_S, end_s, 36)
    done = np.clip(time_s / (0.8 * end_s), 0, 1)[:, None]
    sent, received = (
        np.rint(1.01 * done * (between.sum(axis=axis) - own)).astype(np.int64) for axis in (1, 0)
    )
    links = Links(time_s, sent, received, bits_per_s)
    return replace(run, traffic=replace(run.traffic, links=links))


def traced(world_size: int = 4, steps: int = 3) -> Run:
    """Steps with a loader, an all_reduce behind the computation and one that ranks stand still for;
    the last rank comes late. Seen by torch.profiler, except for the loader."""
    n, calls, blocks, spans = world_size, [], [], []
    for step in range(steps):
        at = step * 12 * STEP_S
        late = at + 3 * STEP_S  # when the last rank begins to wait
        for rank in range(n):
            loaded = at + STEP_S * (0.5 if rank < n - 1 else 2)
            computed = loaded + STEP_S
            blocks.append(MeasuredBlock("step", rank, at, at + 11 * STEP_S, (0,) * n))
            blocks.append(MeasuredBlock("loader", rank, at + 1e-5, loaded, (0,) * n))
            times = {"start_s": computed, "end_s": late + 2 * STEP_S, "seq": 2 * step}
            blocking = collective("all_reduce", rank, n, **times)
            times = {"start_s": late + 3 * STEP_S, "end_s": late + 7 * STEP_S, "seq": 2 * step + 1}
            behind = collective("all_gather", rank, n, **times)
            calls += [
                replace(blocking, wait_start_s=computed),
                replace(behind, wait_start_s=late + 6 * STEP_S),
            ]
            for name, start_s, end_s in (
                ("aten::linear", loaded, computed),
                ("aten::relu", late + 2 * STEP_S, late + 6 * STEP_S),
                ("aten::add_", late + 7 * STEP_S, late + 8 * STEP_S),
            ):
                spans.append(Span(rank, name, "compute", start_s, end_s))
            for call in (blocking, behind):
                assert call.end_s is not None
                name = f"gloo:{call.op}"
                spans.append(Span(rank, name, "communication", call.start_s, call.end_s))
    run = make_run(n, calls, blocks=tuple(blocks))
    return replace(run, spans=sorted(spans, key=lambda span: span.start_s))


def many_spans(world_size: int, operators: int) -> Run:
    """Profiled ranks: short operators, and after nine of them a short all_reduce."""
    spans, calls = [], list[Call]()
    for rank in range(world_size):
        for k in range(operators):
            start_s = k * 1e-4 + rank * 1e-6
            if k % 10:
                spans.append(Span(rank, "aten::mm", "compute", start_s, start_s + 7e-5))
                continue
            call = replace(
                collective(
                    "all_reduce",
                    rank,
                    world_size,
                    start_s=start_s,
                    end_s=start_s + 9e-5,
                    seq=k // 10,
                ),
                wait_start_s=start_s,
            )
            calls.append(call)
            spans.append(Span(rank, "gloo:all_reduce", "communication", start_s, start_s + 9e-5))
    blocks = tuple(
        MeasuredBlock("step", rank, 0, operators * 1e-4, (0,) * world_size)
        for rank in range(world_size)
    )
    return replace(make_run(world_size, calls, blocks=blocks), spans=spans)
