"""The files of docs/many-nodes, checked as far as that is possible without a cluster."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.running_lab import ROOT

FOLDER = ROOT / "docs/many-nodes"
PAGE = (ROOT / "docs/many-nodes.md").read_text()
SCRIPTS = ("by-hand.sh", "slurm.sbatch")


def test_the_page_links_to_every_file() -> None:
    linked = set(re.findall(r"\]\(many-nodes/([\w.-]+)\)", PAGE))
    assert linked == {path.name for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n", str(FOLDER / name)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, "--shell=bash", str(FOLDER / name)], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_torchrun_and_preflight_get_arguments_that_they_know(name: str, tmp_path: Path) -> None:
    """Runs the file with programs that print their arguments."""
    for program in ("torchrun", "python", "srun", "scontrol"):
        shown = 'exec "$@"' if program == "srun" else f'echo {program} "$@"'
        shown = "echo node-a; echo node-b" if program == "scontrol" else shown
        skip = "shift\n" if program == "srun" else ""  # --kill-on-bad-exit
        (tmp_path / program).write_text(f"#!/bin/bash\n{skip}{shown}\n")
        (tmp_path / program).chmod(0o755)
    arguments = ["script.py"] if name.endswith("sbatch") else ["node-a", "script.py"]
    given = {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    ran = subprocess.run(
        ["bash", str(FOLDER / name), *arguments],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **given},
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    preflight, torchrun = ran
    assert preflight == "python -m shardlab preflight --nnodes 2 --endpoint node-a:29400"
    parsed = get_args_parser().parse_args(torchrun.split()[1:])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.rdzv_backend) == ("2", "4", "c10d")
    assert parsed.rdzv_endpoint == "node-a:29400"
    assert parsed.training_script == "script.py"


def test_slurm_starts_one_task_for_each_node() -> None:
    options = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", (FOLDER / "slurm.sbatch").read_text(), re.M)
    assert dict(options)["ntasks-per-node"] == "1"


def test_the_manifest_is_a_pytorchjob() -> None:
    """The required parts of Kubeflow's v1 schema, and what this course needs in it."""
    job = yaml.safe_load((FOLDER / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    assert isinstance(job["spec"]["nprocPerNode"], str)  # an integer is refused
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for each in replicas.values():
        assert each["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        (container,) = each["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in each["template"]["spec"]["volumes"]}
        assert container["command"][0] == "torchrun"


def test_deepspeed_reads_the_hostfile(tmp_path: Path) -> None:
    """With its own parser; importing its launcher would take ten seconds."""
    import deepspeed.launcher

    source = (Path(deepspeed.launcher.__file__).parent / "runner.py").read_text()
    parser = next(
        each
        for each in ast.parse(source).body
        if isinstance(each, ast.FunctionDef) and each.name == "_parse_hostfile"
    )
    import collections
    import logging

    scope = {"re": re, "collections": collections, "logger": logging.getLogger("hostfile")}
    exec(ast.unparse(parser), scope)
    lines = (FOLDER / "hostfile").read_text().splitlines(keepends=True)
    assert dict(scope["_parse_hostfile"](lines)) == {"node-a": 4, "node-b": 4}  # type: ignore[operator]
