"""`make lab`: the JupyterLab it starts, and its error messages."""

from __future__ import annotations

import json
import os
import re
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


def fetch_json(server: LabServer, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}?token={server.token}", timeout=30) as answer:
        return json.load(answer)


def test_a_port_in_use_is_an_error(busy_port: int) -> None:
    for args in (["--port", str(busy_port)], [f"--ServerApp.port={busy_port}", "--ip=127.0.0.1"]):
        done = subprocess.run(
            [sys.executable, "tools/lab.py", *args], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr == (
            f"shardlab: port {busy_port} is in use: choose another one, or omit --port "
            "and let JupyterLab choose a free one\n"
        )


def test_arguments_are_passed_to_jupyterlab() -> None:
    args = ["--ip", "0.0.0.0", "--no-browser"]
    assert lab.command(args)[-3:] == args
    assert lab.option(["--port", "1", "--port=2"], "port") == "2"
    assert lab.option(["--ip", "0.0.0.0"], "port") is None
    assert lab.option([], "port") is None


def test_allow_root_is_passed_only_when_running_as_root() -> None:
    assert ("--allow-root" in lab.command([])) == (os.geteuid() == 0)


def test_it_serves_the_repository_without_the_text_sources(lab_server: LabServer) -> None:
    course = fetch_json(lab_server, "api/contents/")
    assert "README.md" in [entry["name"] for entry in course["content"]]
    assert list((lab_server.root / "course/chapters").glob("*.nb.py"))
    chapters = fetch_json(lab_server, "api/contents/course/chapters")
    shown = [entry["name"] for entry in chapters["content"]]
    assert "00_start_here.ipynb" in shown
    assert not [name for name in shown if name.endswith(".nb.py")]


def test_it_opens_the_front_page(lab_server: LabServer) -> None:
    log = (lab_server.home / "lab.log").read_text()
    assert f"{lab.FIRST_PAGE}?token={lab_server.token}" in log
    assert "Warning" not in log
    assert (ROOT / lab.FIRST_PAGE.removeprefix("/lab/tree/")).exists()


def test_it_does_not_fetch_news_or_updates(lab_server: LabServer) -> None:
    plugin = "@jupyterlab/apputils-extension:notification"
    properties = fetch_json(lab_server, f"lab/api/settings/{plugin}")["schema"]["properties"]
    assert properties["fetchNews"]["default"] == "false"
    assert properties["checkForUpdates"]["default"] is False


def test_nbgrader_is_enabled_and_jupytext_is_not(lab_server: LabServer) -> None:
    page = urllib.request.urlopen(f"{lab_server.url}lab?token={lab_server.token}", timeout=30)
    html = page.read().decode()
    config = json.loads(html.split('id="jupyter-config-data"')[1].split(">", 1)[1].split("<")[0])
    extensions = {extension["name"] for extension in config["federated_extensions"]}
    assert {"@jupyter/nbgrader", "anywidget", "@jupyter-widgets/jupyterlab-manager"} <= extensions
    assert config["disabledExtensions"] == ["jupyterlab-jupytext"]
    formgrader = urllib.request.urlopen(lab_server.url_of("/formgrader"), timeout=30)
    assert formgrader.status == 200


def test_only_instructors_see_what_nbgrader_adds() -> None:
    shows = (
        "import json; from jupyterlab_server.config import get_page_config as get;"
        "print(json.dumps(get([])['disabledExtensions']))"
    )
    hidden = {}
    for for_instructor in (False, True):
        env = lab.environment(for_instructor)
        done = subprocess.run([sys.executable, "-c", shows], env=env, capture_output=True)
        found = json.loads(done.stdout)
        hidden[for_instructor] = {name for name in found if "nbgrader" in name}
        assert "jupyterlab-jupytext" in found
    assert hidden[True] == set()
    # All parts of nbgrader that there are today.
    built = Path(sys.prefix, "share/jupyter/labextensions/@jupyter/nbgrader/static")
    scripts = "".join(path.read_text() for path in built.glob("*.js"))
    assert hidden[False] == set(re.findall(r'"(@jupyter/nbgrader:[a-z-]+)"', scripts))


def test_kernels_run_in_the_servers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_kernel = tmp_path / ".local/share/jupyter/kernels/python3/kernel.json"
    other_kernel.parent.mkdir(parents=True)
    other_kernel.write_text(json.dumps({"argv": ["/elsewhere/python"], "display_name": "other"}))
    monkeypatch.setenv("HOME", str(tmp_path))
    print_python = (
        "from jupyter_client import KernelManager as K;"
        "k = K(kernel_name='python3'); k.format_kernel_cmd(); print(k.format_kernel_cmd()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", print_python], env=lab.environment(), capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == Path(sys.executable), done.stderr
