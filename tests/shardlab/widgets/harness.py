"""A bare page in place of JupyterLab: a model with get, set and on, and one widget."""

from __future__ import annotations

import json
from typing import Any

from shardlab.widgets.picture import Picture

# The variables of JupyterLab's own themes that the widgets use.
LIGHT = {
    "--jp-content-font-color1": "rgba(0, 0, 0, 0.87)",
    "--jp-content-font-color2": "rgba(0, 0, 0, 0.54)",
    "--jp-border-color1": "#bdbdbd",
    "--jp-layout-color0": "#ffffff",
    "--jp-layout-color2": "#eeeeee",
    "--jp-brand-color1": "#1976d2",
}
DARK = {
    "--jp-content-font-color1": "rgba(255, 255, 255, 1)",
    "--jp-content-font-color2": "rgba(255, 255, 255, 0.7)",
    "--jp-border-color1": "#616161",
    "--jp-layout-color0": "#111111",
    "--jp-layout-color2": "#424242",
    "--jp-brand-color1": "#42a5f5",
}

_SCRIPT = """
const states = JSON.parse(document.getElementById("state").textContent);
function modelOf(state) {
  const listeners = new Map();
  return {
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      for (const listener of listeners.get(`change:${name}`) ?? []) listener();
    },
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) =>
      listeners.set(event, (listeners.get(event) ?? []).filter((other) => other !== listener)),
    save_changes() {},
    listening: () => [...listeners.values()].flat().length,
  };
}
window.models = {};
for (const [name, state] of Object.entries(states)) models[name] = modelOf(state);
window.model = models.shown;
const host = { getModel: async (ref) => models[ref] };
const source = JSON.parse(document.getElementById("esm").textContent);
const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
const widget = (await import(url)).default;
const el = document.getElementById("here");
window.cleanUp = await widget.render({ model, host, el });
document.body.dataset.ready = "yes";
"""


def page_for(widget: Picture, *, dark: bool = False, width: int = 900) -> str:
    """One HTML document that shows ``widget``."""
    variables = "".join(f"{name}:{value};" for name, value in (DARK if dark else LIGHT).items())
    states = {"shown": _state(widget)}
    for name, value in states["shown"].items():
        if isinstance(value, Picture):  # a widget that refers to another one
            states[name] = _state(value)
    states["shown"] |= {name: name for name in states if name != "shown"}
    return (
        f"<!doctype html><meta charset='utf-8'><style>:root{{{variables}}}"
        "body{margin:16px;background:var(--jp-layout-color0)}"
        f"#here{{max-width:{width}px}}{widget._css}</style><div id='here'></div>"
        f"<script type='application/json' id='state'>{_inert(states)}</script>"
        f"<script type='application/json' id='esm'>{_inert(widget._esm)}</script>"
        f"<script type='module'>{_SCRIPT}</script>"
    )


def _state(widget: Picture) -> dict[str, Any]:
    return {
        name: getattr(widget, name)
        for name in widget.traits(sync=True)
        if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")
    }


def _inert(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")
