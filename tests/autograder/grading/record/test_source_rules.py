"""Forbidden calls are found however they are written; honest answers and prose are not flagged."""

from __future__ import annotations

import pytest

from autograder import exercises
from autograder.grading.record.source_rules import CALL, SUSPICIOUS, find_forbidden
from tests.submissions import planted

P2P = frozenset({"send", "recv"})


CLOSED = ("shardlab.pipeline", "shardlab.simulate.pipeline.zero_bubble")


def names(source, allows=P2P, kind=CALL, answer=""):
    found = find_forbidden(source, allows, answer, CLOSED)
    return [each.name for each in found if each.kind == kind]


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_reduce(t)",
        "torch.distributed.all_reduce(t)",
        "import torch.distributed as d\nd.all_reduce(t)",
        "from torch import distributed as d\nd.all_reduce(t)",
        "from torch.distributed import all_reduce as f\nf(t)",
        "from torch.distributed import *\nall_reduce(t)",
        "d = dist\ne = d\ne.all_reduce(t)",
        "f = dist.all_reduce\nf(t)",
        "getattr(dist, 'all_reduce')(t)",
        "getattr(dist, 'all_' + 'reduce')(t)",
        "vars(dist)['all_reduce'](t)",
        "dist.__dict__['all_reduce'](t)",
        "__import__('torch').distributed.all_reduce(t)",
        "import importlib\nimportlib.import_module('torch.distributed').all_reduce(t)",
        "import sys\nsys.modules['torch.distributed'].all_reduce(t)",
        "exec('import torch.distributed as d; d.all_reduce(t)')",
        "list(map(dist.all_reduce, tensors))",
        "%time dist.all_reduce(t)\n!ls\nhelp?\ndist.all_reduce(t)",
    ],
)
def test_a_call_is_found_under_any_name(source):
    assert set(names(source)) == {"all_reduce"}


def test_the_message_is_the_same_as_from_a_run():
    (found,) = find_forbidden("x = 1\ndist.all_reduce(t)", P2P)
    assert found.says == "calls all_reduce: this task allows only send and recv"
    assert found.line == 2


@pytest.mark.parametrize(
    "source",
    [
        "dist.send(t, 1); dist.recv(t, 0)",
        "dist.isend(t, 1).wait(); dist.irecv(t, 0).wait()",
        "dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1)])",
        "# dist.all_reduce(t) would do it\nx = 'dist.all_reduce(t)'",
        'def f(t):\n    """Not all_reduce, shardlab.trace or /proc/self/mem."""\n    return t',
        "def all_reduce(t):\n    return t\nall_reduce(t)",
        "mine.all_reduce(t)",
        "dist.get_rank(); dist.get_world_size(); dist.ReduceOp.SUM",
        "rank: int = dist.get_rank()\nt.add_(1); torch.add(t, t, out=t)",
        "weight.data = weight.data + 1\nmodel.head.weight = model.embedding.weight",
        "this is not python (",
    ],
)
def test_allowed_calls_are_not_found(source):
    assert find_forbidden(source, P2P) == []


def test_only_code_that_the_answer_can_reach_is_searched():
    source = (
        "def spec(t):\n    dist.all_reduce(t)\n"
        "def helper(t):\n    dist.broadcast(t, 0)\n"
        "def answer(t):\n    helper(t)\n"
    )
    assert names(source) == ["all_reduce", "broadcast"]
    assert names(source, answer="answer") == ["broadcast"]
    assert names(source, allows=None) == []
    assert names(source, allows=frozenset({"all_reduce"})) == ["broadcast"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import shardlab.trace.recorder", "shardlab.trace.recorder"),
        ("from shardlab.ranks.rank import RECORDER", "shardlab.ranks.rank.RECORDER"),
        ("from autograder import exercise", "autograder.exercise"),
        ("import ctypes", "ctypes"),
        ("import socket as s\ns.socket()", "socket"),
        ("open('/proc/self/mem')", "'/proc/self'"),
        ("exec(code)", "exec"),
        ("import gc", "gc"),
        ("from shardlab.pipeline import run_schedule", "shardlab.pipeline.run_schedule"),
        ("import shardlab.simulate.pipeline as p\np.zb_v(2, 4)", "shardlab.simulate.pipeline.zb_v"),
        ("import sys\nsys._getframe(1)", "sys._getframe"),
        ("torch.ops.c10d.allreduce_", "torch.ops.c10d.allreduce_"),
        ("torch.isclose = lambda *a: True", "torch.isclose = …"),
        ("setattr(torch, 'isclose', 1)", "torch.… = …"),
        ("import os\nos.execv('a', [])", "os.exec"),
        ("def f():\n    yield\nf().gi_frame.f_back", "f_back"),
        ("import os as o\no.posix_fadvise(fd, 0, 0, o.POSIX_FADV_DONTNEED)", "os.posix_fadvise"),
        ("from os import posix_fadvise as f\nf(fd, 0, 0, 4)", "os.posix_fadvise"),
        ("import posix\nposix.posix_fadvise(fd, 0, 0, 4)", "posix.posix_fadvise"),
        ("libc.mincore(address, n, pages)", "mincore"),
        ("def f(libc):\n    return libc.cachestat(fd, r, s, 0)", "cachestat"),
        ("pages.madvise(4)", "madvise"),
        ("getattr(libc, 'cache' + 'stat')(fd)", "cachestat"),
        ("import os\nos.preadv(fd, [b], 0, 8)", "os.preadv"),
        ("import os\nos.setxattr(path, 'user.a', data)", "os.setxattr"),
        ("import os\nvars(os)[name](path)", "os.… by a computed name"),
        ("import os\ngetattr(os, ''.join(letters))(path)", "os.… by a computed name"),
        ("import importlib\nimportlib.import_module(name)", "an import by a computed name"),
        (
            "def f(t, launcher=torch.multiprocessing):\n    launcher.spawn(t)",
            "torch.multiprocessing.spawn",
        ),
        ("run = ['setfattr', '-n', 'user.a']; x = 'user.setxattr'", "'setxattr'"),
    ],
)
def test_suspicious_tools_are_found(source, name):
    assert name in names(source, kind=SUSPICIOUS)


MANY = "sends or receives"


@pytest.mark.parametrize(
    "source",
    [
        "for tag in range(3000):\n    dist.irecv(torch.empty(1), 0, tag=tag)",
        "def f():\n    return [dist.irecv(torch.empty(1), 0, tag=t) for t in range(1 << 12)]",
        "N = 64 * 64\ndef f():\n    for _ in range(N):\n        kept.append(dist.irecv(t, 0))",
        "def f(n=5000):\n    i = 0\n    while i < n:\n        i += 1; dist.irecv(t, 0)",
        "def f():\n    while True:\n        kept.append(dist.irecv(t, 0))",
        "def post(t):\n    return dist.irecv(t, 0)\ndef f():\n    return [*map(post, range(4000))]",
        "for a in range(70):\n    for b in range(70):\n        dist.isend(t, 0)",
        "dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, 0)] * 2000)",
        "from torch.distributed import irecv as r\nimport itertools\n"
        "for _ in itertools.repeat(None, 2500):\n    r(t, 0)",
        "class A:\n    def post(self):\n        dist.irecv(t, 0)\n"
        "    def f(self):\n        for _ in range(2, 9000, 2):\n            self.post()",
    ],
)
def test_thousands_of_receives_are_found(source):
    assert MANY in names(source, kind=SUSPICIOUS)


@pytest.mark.parametrize(
    "source",
    [
        "for step in range(dist.get_world_size() - 1):\n    dist.isend(t, 1); dist.irecv(t, 0)",
        "for at in range(0, t.numel(), 65536):\n    dist.isend(t[at : at + 65536], 1).wait()",
        "for part in t.split(4096):\n    dist.isend(part, 1)",
        "while True:\n    w = dist.irecv(t, 0)\n    w.wait()\n    if t[0] < 0:\n        break",
        "n = 5000\ndef f(chunks):\n    n = len(chunks)\n    for i in range(n):\n"
        "        dist.isend(chunks[i], 1)",
        "x = [i for i in range(5000)]\ndist.irecv(t, 0)",
        "for tag in (1000, 2000):\n    dist.irecv(t, 0, tag=tag)",
    ],
)
def test_ordinary_loops_are_not_found(source):
    assert names(source, kind=SUSPICIOUS) == []


@pytest.mark.parametrize(
    "source",
    [
        "import signal\ndef answer(signal):\n    return signal.abs()",
        "import gc, socket\ndef answer(x):\n    gc = x.mean(); socket = 1\n    return gc.abs()",
        "import signal\nanswer = lambda signal: signal.abs()",
        "run = launch(train)\ndef answer(x):\n    run = x + 1\n    return run",
        "d = dist\ndef answer(d):\n    return d.all_reduce()",
    ],
)
def test_local_names_are_not_what_the_notebook_calls_so(source):
    assert find_forbidden("from shardlab import launch\n" + source, P2P, "answer") == []


def test_a_name_that_another_function_declares_global_is_followed():
    source = "def f():\n    global g\n    g = dist.broadcast\ndef answer(t):\n    g(t, 0)\n"
    assert names(source, answer="answer") == ["broadcast"]


def test_huge_sources_are_searched_without_an_error():
    assert find_forbidden("(" * 100_000, P2P) == []
    assert find_forbidden("x" + ".y" * 50_000, P2P) == []
    assert find_forbidden("-" * 50_000 + "1", P2P) == []
    assert find_forbidden("\x00", P2P) == []


@pytest.mark.parametrize("lab", exercises.labs())
def test_right_answers_are_not_flagged(lab):
    source = "\n\n".join(planted.solution(lab).values())
    for exercise in exercises.of_lab(lab):
        assert find_forbidden(source, exercise.allows, exercise.answer) == []


@pytest.mark.parametrize("lab", exercises.labs())
def test_planted_mistakes_are_flagged_only_for_forbidden_calls(lab):
    right = planted.solution(lab)
    for mistake in planted.of_lab(lab):
        if mistake.cheats:
            continue
        source = "\n\n".join((right | mistake.answers).values())
        for exercise in exercises.of_lab(lab):
            found = find_forbidden(source, exercise.allows, exercise.answer)
            message = mistake.says.get(exercise.answer, "")
            assert {each.kind for each in found} <= {CALL}
            assert not found or any(message in each.says for each in found)


@pytest.mark.parametrize("lab", exercises.labs())
def test_planted_cheats_are_flagged(lab):
    for cheat in (each for each in planted.of_lab(lab) if each.cheats):
        for answer in cheat.loses:
            found = find_forbidden("\n\n".join(cheat.answers.values()), None, answer)
            assert {each.kind for each in found} == {SUSPICIOUS}, cheat.name
