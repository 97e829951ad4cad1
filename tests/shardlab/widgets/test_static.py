"""Without a browser, a widget is a static picture."""

from pathlib import Path

import nbclient
import nbformat
import pytest
from nbconvert import HTMLExporter

from shardlab.widgets import ring_player, timeline, traffic_map
from tests import kernels
from tests.shardlab.widgets.synthetic import ring_all_reduce

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("draw", [traffic_map, ring_player, timeline])
def test_outside_a_notebook_a_widget_is_text_and_a_static_picture(draw) -> None:
    data, _ = draw(ring_all_reduce(4))._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "image/svg+xml"}
    assert "4 ranks" in data["text/plain"]


def test_nbconvert_shows_the_picture(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell(
            "from shardlab.run import Run, Traffic\n"
            "from shardlab.widgets import traffic_map\n"
            "import numpy as np\n"
            "sent = Traffic(np.array([[0, 2**20], [2**20, 0]]), 'counted by hand')\n"
            "traffic_map(Run(2, 'cpu', '', [None] * 2, [''] * 2, [''] * 2, sent, [], 0.1, 0.2))"
        )
    ]
    executed = nbclient.NotebookClient(
        notebook, kernel_name="python3", config=kernels.config(tmp_path)
    ).execute()
    (output,) = executed.cells[0].outputs
    assert WIDGET_VIEW not in output.data
    assert "widgets" not in executed.metadata  # its state is of use only to a live view
    html, _ = HTMLExporter().from_notebook_node(executed)
    assert "data:image/svg+xml;base64," in html
