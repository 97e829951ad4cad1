# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "smuggling"
# tries = "HTML, SVG, markdown, JavaScript and widgets that run scripts in a reader's browser"
# seen_by = "points"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
from IPython.display import HTML, SVG, Javascript, Markdown, display
script = "<script>document.title='@MARK@'</script><img src=x onerror=alert(1)>"
display(HTML(script), Markdown(script + "[x](javascript:alert(1))"), Javascript("alert(1)"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"))
display({"text/html": script, "application/vnd.jupyter.widget-view+json": {"model_id": "x"}}, raw=True)
print("\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07", script)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
