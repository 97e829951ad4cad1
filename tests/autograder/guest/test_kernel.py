"""During grading, a student's cells behave as in JupyterLab, without Jupyter's processes."""

from __future__ import annotations

import base64
from functools import partial

import cloudpickle
import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from autograder.grading.notebook.runner import CellsRun, run_cells
from autograder.sandbox import Limits
from autograder.sandbox.plain_kernel import start_cells

CELLS = {
    "order": """
import os, sys, subprocess
print("one"); os.write(1, b"two\\n"); subprocess.run(["echo", "three"]); print("four")
print("noise", file=sys.stderr)
display("shown"); print("five")
"the value"
""",
    "await": """
import asyncio
await asyncio.sleep(0.001)
asyncio.get_running_loop().is_running()
""",
    "shell": "word = 'out'\n!echo $word; echo error >&2\nlisted = !echo kept\nlisted",
    "captured": "%%capture out\n!echo captured\nprint('printed')\ndisplay(1)",
    "magics": "%%time\nassert out.stdout == 'captured\\nprinted\\n' and len(out.outputs) == 1; 7",
    "bash": "%%bash\necho from bash",
    "updated": "handle = display('first', display_id='an id')",
    "updates": "handle.update('second', metadata={'isolated': True})",
    "cleared": """
from IPython.display import clear_output
print("gone"); display("gone"); clear_output(); print("stays"); clear_output(wait=True)
""",
    "bar": "for i in range(50): print(f'\\r{i} of 50', end='')\nprint()",
    "rich": """
from IPython.display import JSON, Image
display(Image(data=b"\\x89PNG\\r\\n\\x1a\\n", format="png"), JSON({"a": [1, float("nan")]}))
class Rich:
    def _repr_html_(self): return "<b>\\ud800</b>"
    def __repr__(self): return "rich"
Rich()
""",
    "figure": "import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1)).gca();",
    "widget": "import ipywidgets\ndisplay(ipywidgets.IntSlider(), ipywidgets.Output())",
    "raises": "def inner():\n    raise ValueError('why')\ninner()",
    "syntax": "this is no Python",
    "magic": "%no_such_magic",
    "group": "raise ExceptionGroup('several', [ValueError('one')])",
    "exits": "import sys\nsys.exit(3)",
    "input": "input('your name? ')",
    "quits": "exit()",
    "forks": "import os\nif os.fork(): os.wait()\nprint('twice')",
    "silent": "x = 1;",
    "help": "print?",
    "module": "import __main__; __main__.x",
    "answers": """
from autograder import check
from dataclasses import dataclass
@dataclass
class Answer:
    value: int
check("lab.one", Answer(1))
check("lab.one", Answer(2))
check("lab.two", __import__("threading").Lock())
""",
    "process_settings": """
import os, sys
import autograder, shardlab
assert not any(name.startswith(("autograder.exercises", "nbgrader", "zmq")) for name in sys.modules)
assert "shardlab.widgets" not in sys.modules and os.listdir(".") in ([], ["matplotlib"])
os.path.basename(__import__("shardlab").__file__), sys.argv, sys.stdin.read()
""",
    "threads": """
import threading
a_later_cell = threading.Event()
speaker = threading.Thread(target=lambda: (a_later_cell.wait(), print("from a thread")))
speaker.start()
""",
    "later": "a_later_cell.set(); speaker.join()",
}


@pytest.fixture(scope="module")
def ran() -> tuple[dict[str, NotebookNode], CellsRun]:
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS.values()])
    limits = Limits(cell_s=60)
    done = run_cells(notebook, partial(start_cells, limits), limits, {"lab.one", "lab.two"})
    nbformat.validate(notebook)
    return dict(zip(CELLS, notebook.cells, strict=True)), done


def outputs(ran: tuple[dict[str, NotebookNode], CellsRun], name: str) -> list[tuple[str, str]]:
    """(output type or stream name, text) of each output."""
    found = []
    for output in ran[0][name].outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        elif output.output_type == "error":
            found.append(("error", f"{output.ename}: {output.evalue}"))
        else:
            found.append((output.output_type, output.data["text/plain"]))
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "order",
            [
                ("stdout", "one\ntwo\nthree\nfour\n"),
                ("stderr", "noise\n"),
                ("display_data", "'shown'"),
                ("stdout", "five\n"),
                ("execute_result", "'the value'"),
            ],
        ),
        ("await", [("execute_result", "True")]),
        (
            "shell",
            [("stdout", "out\n"), ("stderr", "error\n"), ("execute_result", "['kept']")],
        ),
        ("captured", []),
        ("bash", [("stdout", "from bash\n")]),
        ("updated", [("display_data", "'second'")]),
        ("updates", []),
        ("cleared", [("stdout", "stays\n")]),
        ("bar", [("stdout", "49 of 50\n")]),
        ("raises", [("error", "ValueError: why")]),
        ("exits", [("error", "SystemExit: 3")]),
        ("quits", []),
        ("silent", []),
        ("help", []),
        ("module", [("execute_result", "1")]),
        ("process_settings", [("execute_result", "('__init__.py', [''], '')")]),
        ("later", [("stdout", "from a thread\n")]),
    ],
)
def test_outputs_are_as_in_jupyter(
    ran: tuple[dict[str, NotebookNode], CellsRun], name: str, expected: list[tuple[str, str]]
) -> None:
    found = outputs(ran, name)
    assert [each for each in found if "UserWarning" not in each[1]] == expected


def test_values_and_figures(ran: tuple[dict[str, NotebookNode], CellsRun]) -> None:
    cells, _ = ran
    assert outputs(ran, "magics")[0][1].startswith("CPU times")
    assert outputs(ran, "magics")[1] == ("execute_result", "7")
    assert cells["updated"].outputs[0].metadata == {"isolated": True}
    image, no_json, rich = cells["rich"].outputs
    assert base64.b64decode(image.data["image/png"]) == b"\x89PNG\r\n\x1a\n"
    assert "JSON object" in no_json.data["text/plain"]
    assert rich.data == {"text/html": "<b>?</b>", "text/plain": "rich"}
    (figure,) = cells["figure"].outputs
    assert base64.b64decode(figure.data["image/png"]).startswith(b"\x89PNG")
    assert [output.data for output in cells["widget"].outputs] == [
        {"text/plain": "IntSlider(value=0)"},
        {"text/plain": "Output()"},
    ]
    assert sorted(outputs(ran, "forks")) == [("stdout", "twice\ntwice\n")]


def test_errors_are_shown_and_counted(ran: tuple[dict[str, NotebookNode], CellsRun]) -> None:
    cells, done = ran
    (raised,) = cells["raises"].outputs
    assert "inner" in "\n".join(raised.traceback)
    assert "Cell" in "\n".join(raised.traceback)
    last = {name: outputs(ran, name)[-1][1] for name in ("syntax", "magic", "group", "input")}
    assert last["syntax"].startswith("SyntaxError: invalid syntax")
    assert last["magic"].startswith("UsageError: Line magic function `%no_such_magic`")
    assert last["group"] == "ExceptionGroup: several (1 sub-exception)"
    assert last["input"].startswith("EOFError: input() is not available")
    names = {list(CELLS)[position]: end.status for position, end in done.ends.items()}
    failed = {name for name, how in names.items() if how != "ran"}
    assert failed == {"raises", "syntax", "magic", "group", "exits", "input", "answers"}
    assert {names[name] for name in failed} == {"raised"}
    assert (done.limits_hit, done.tampering) == ([], [])
    counts = [cell.execution_count for cell in cells.values()]
    assert counts == list(range(1, len(CELLS) + 1))


def test_the_last_answer_counts_and_is_pickled_by_value(
    ran: tuple[dict[str, NotebookNode], CellsRun],
) -> None:
    _, done = ran
    assert list(done.answers) == ["lab.one"]
    assert cloudpickle.loads(done.answers["lab.one"]).value == 2
    ((kind, text),) = outputs(ran, "answers")
    assert kind == "error"
    assert text.startswith("CheckFailed: two cannot be sent to the ranks")
