"""`make lab`: the JupyterLab it starts, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_lab import ROOT, LabServer
from tools import lab


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def ask(server: LabServer, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}?token={server.token}", timeout=30) as answer:
        return json.load(answer)


def test_a_taken_port_that_was_asked_for_is_named(busy_port: int) -> None:
    for args in (["--port", str(busy_port)], [f"--ServerApp.port={busy_port}", "--ip=127.0.0.1"]):
        asked = subprocess.run(
            [sys.executable, "tools/lab.py", *args], cwd=ROOT, capture_output=True, text=True
        )
        assert asked.returncode == 1
        assert asked.stderr == (
            f"shardlab: port {busy_port} is taken: name another one, or leave --port out "
            "and JupyterLab picks a free one\n"
        )


def test_arguments_are_passed_on() -> None:
    args = ["--ip", "0.0.0.0", "--no-browser"]
    assert lab.command(args)[-3:] == args
    assert lab.option(["--port", "1", "--port=2"], "port") == "2"
    assert lab.option(["--ip", "0.0.0.0"], "port") is None
    assert lab.option([], "port") is None


def test_root_is_told_to_jupyter_only_where_we_are_root() -> None:
    assert ("--allow-root" in lab.command([])) == (os.geteuid() == 0)


def test_it_serves_the_repository_without_the_text_sources(lab_server: LabServer) -> None:
    course = ask(lab_server, "api/contents/")
    assert "README.md" in [entry["name"] for entry in course["content"]]
    assert list((lab_server.root / "course/chapters").glob("*.nb.py"))
    shown = [entry["name"] for entry in ask(lab_server, "api/contents/course/chapters")["content"]]
    assert "00_start_here.ipynb" in shown
    assert not [name for name in shown if name.endswith(".nb.py")]


def test_it_opens_the_first_chapter(lab_server: LabServer) -> None:
    log = (lab_server.home / "lab.log").read_text()
    assert f"{lab.FIRST_PAGE}?token={lab_server.token}" in log
    assert (ROOT / lab.FIRST_PAGE.removeprefix("/lab/tree/")).exists()


def test_it_asks_for_no_news(lab_server: LabServer) -> None:
    plugin = "@jupyterlab/apputils-extension:notification"
    properties = ask(lab_server, f"lab/api/settings/{plugin}")["schema"]["properties"]
    assert properties["fetchNews"]["default"] == "false"
    assert properties["checkForUpdates"]["default"] is False


def test_nbgrader_is_there_and_jupytext_is_not(lab_server: LabServer) -> None:
    page = urllib.request.urlopen(f"{lab_server.url}lab?token={lab_server.token}", timeout=30)
    html = page.read().decode()
    config = json.loads(html.split('id="jupyter-config-data"')[1].split(">", 1)[1].split("<")[0])
    extensions = {extension["name"] for extension in config["federated_extensions"]}
    assert {"@jupyter/nbgrader", "anywidget", "@jupyter-widgets/jupyterlab-manager"} <= extensions
    assert config["disabledExtensions"] == ["jupyterlab-jupytext"]
    formgrader = urllib.request.urlopen(lab_server.url_of("/formgrader"), timeout=30)
    assert formgrader.status == 200


def test_kernels_run_in_the_environment_that_runs_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intruder = tmp_path / ".local/share/jupyter/kernels/python3/kernel.json"
    intruder.parent.mkdir(parents=True)
    intruder.write_text(json.dumps({"argv": ["/elsewhere/python"], "display_name": "elsewhere"}))
    monkeypatch.setenv("HOME", str(tmp_path))
    which = (
        "from jupyter_client import KernelManager as K;"
        "k = K(kernel_name='python3'); k.format_kernel_cmd(); print(k.format_kernel_cmd()[0])"
    )
    asked = subprocess.run(
        [sys.executable, "-c", which], env=lab.environment(), capture_output=True, text=True
    )
    assert Path(asked.stdout.strip()) == Path(sys.executable), asked.stderr
