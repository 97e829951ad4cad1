"""The stop button while ranks sleep: the cell and its ranks end, the kernel keeps running."""

from __future__ import annotations

import re

import psutil
import pytest
from playwright.sync_api import expect

from tests.browser.jupyterlab import JupyterLab
from tests.browser.notebooks import write_scratch

pytestmark = [pytest.mark.browser, pytest.mark.ranks]

SLEEPERS = """
import os, time
from shardlab import launch

def sleep_long():
    print("my process is", os.getpid())
    time.sleep(600)

launch(sleep_long, world_size=4, timeout_s=900)
"""


def test_the_stop_button_ends_a_run(loaded_lab: JupyterLab) -> None:
    path = write_scratch(loaded_lab.server.root / "sleepers.ipynb", SLEEPERS, "2 + 2")
    notebook = loaded_lab.open(path.name)

    sleepers = notebook.cell("cell-1")
    sleepers.start()
    output = sleepers.output.locator(".shardlab-output")
    expect(output).to_have_text(re.compile(r"(my process is \d+.*){4}", re.DOTALL))
    ranks = [int(pid) for pid in re.findall(r"my process is (\d+)", output.inner_text())]
    assert len(ranks) == 4
    assert all(psutil.pid_exists(pid) for pid in ranks)

    notebook.root.get_by_role("button", name="Interrupt the kernel").click()
    sleepers.finish()
    assert [out["ename"] for out in sleepers.outputs() if out["output_type"] == "error"] == [
        "KeyboardInterrupt"
    ]
    assert not [pid for pid in ranks if psutil.pid_exists(pid)]

    assert notebook.cell("cell-2").run().text() == "4"
    notebook.close()
