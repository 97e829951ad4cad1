// A picture whose live view is not found yet: jupyter-widgets waits two seconds for it, which is too short on a busy
// machine when a notebook is opened whose kernel still runs.

const NOT_FOUND = "Error displaying widget: model not found";
const VIEW = "application/vnd.jupyter.widget-view+json";
const RETRY_AFTER_MS = [2_000, 4_000, 8_000, 16_000, 30_000];

/** A function to call with each new node of the page; `shell` is JupyterLab's. */
function widgetRetries(shell) {
  const tries = new Map(); // by the widgets that a cell shows: others once it has run again
  const shownBy = ({ outputs }) => outputs.toJSON().flatMap(({ data }) => data?.[VIEW]?.model_id ?? []).join();
  const drawAgain = (cell) => {
    const { outputs } = cell.model;
    if (cell.node.textContent.includes(NOT_FOUND)) outputs.fromJSON(outputs.toJSON());
  };
  return (node) => {
    const text = node.nodeType === Node.TEXT_NODE ? node.data : "";
    const output = text.startsWith(NOT_FOUND) ? node.parentElement?.closest(".jp-OutputArea") : null;
    if (!output?.querySelector(".shardlab-static")) return;
    const cells = [...shell.widgets("main")].flatMap((panel) => panel.content?.widgets ?? []);
    const cell = cells.find((each) => each.node?.contains(output));
    if (!cell?.model.outputs) return;
    const shown = shownBy(cell.model);
    const tried = tries.get(shown) ?? 0;
    if (tried === RETRY_AFTER_MS.length) return;
    tries.set(shown, tried + 1);
    setTimeout(() => drawAgain(cell), RETRY_AFTER_MS[tried]);
  };
}
