// Shared by all widgets, with units.js, controls.js and canvas.js. A widget's own files follow in the same
// module.

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** The distance between ticks: the smallest 1, 2 or 5 times a power of ten that is not below `minimum`. */
function roundStep(minimum) {
  const power = 10 ** Math.floor(Math.log10(minimum));
  return [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= minimum);
}

// ---- page ----

/** Creates an element. Children that are strings become text nodes, so data is never parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function button(label, symbol) {
  return make("button", { type: "button", "aria-label": label, title: label }, symbol);
}

/** An icon for a button, in the text color. */
function icon(d) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  const shape = document.createElementNS(namespace, "path");
  for (const [name, value] of Object.entries({
    viewBox: "0 0 14 14", width: 14, height: 14, fill: "currentColor", "aria-hidden": "true",
  })) svg.setAttribute(name, value);
  shape.setAttribute("d", d);
  svg.append(shape);
  return svg;
}

/**
 * A table that is closed, and not built, until the reader opens it. `headings()` and `rows()` provide
 * its contents; call `refresh()` when they have changed. Returns { node, refresh }.
 */
function tableDetails(headings, rows, signal) {
  const maxRows = 500;
  const node = make("details", {}, make("summary", {}, "As a table"));
  const fill = () => {
    if (!node.open || node.querySelector("table")) return;
    const all = rows();
    const body = make("tbody");
    for (const row of all.slice(0, maxRows)) {
      body.append(make("tr", {}, ...row.map((value) => make("td", {}, String(value)))));
    }
    const head = make("tr", {}, ...headings().map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", {}, make("thead", {}, head), body);
    node.append(make("div", { class: "shardlab-table", tabindex: "0" }, table));
    if (all.length > maxRows) node.append(make("p", {}, `The first ${maxRows} of ${all.length} rows.`));
  };
  const refresh = () => {
    node.replaceChildren(node.firstChild);
    fill();
  };
  node.addEventListener("toggle", fill, { signal });
  return { node, refresh };
}

// ---- a widget ----

/**
 * What a widget's module exports: `create(model, signal, host, prediction)` returns its root; the signal aborts
 * when the widget is removed from the page, or built again because the kernel has set another scene.
 * One with the answer to a prediction, of which it gets the model, is not created before there is a guess.
 */
function widget(create, name) {
  const render = ({ model, el, host }) => {
    const removed = new AbortController();
    let stop = new AbortController();
    let prediction = null;
    let isHeld = false;
    const draw = () => {
      stop.abort();
      stop = new AbortController();
      const { signal } = stop;
      el.replaceChildren(isHeld ? guessFirst(name, prediction, signal) : create(model, signal, host, prediction));
    };
    const drawFirst = () => {
      draw();
      onTraits(model, ["scene"], draw, removed.signal);
    };
    const isUnanswered = () => prediction.get("value") === null && !prediction.get("revealed");
    const attach = (found) => {
      if (removed.signal.aborted) return;
      prediction = found;
      isHeld = isUnanswered();
      drawFirst();
      const look = () => {
        if (isHeld === isUnanswered()) return;
        isHeld = !isHeld;
        draw();
      };
      onTraits(prediction, ["value", "revealed"], look, removed.signal);
    };
    const reference = model.get("prediction");
    // Without a prediction, its cell was deleted.
    if (reference) Promise.resolve(reference).then((ref) => host.getModel(ref)).then(attach, drawFirst);
    else drawFirst();
    return () => {
      removed.abort();
      stop.abort();
    };
  };
  return { render };
}

/** What stands in for a picture until the reader has guessed what it shows, or asks for it. */
function guessFirst(name, prediction, signal) {
  const { root } = card(name, prediction.get("scene").question);
  const reveal = make("button", { type: "button" }, "Show it without a guess");
  root.dataset.state = "waiting";
  root.append(make("p", { class: "shardlab-note" }, "Commit a guess above to see how it compares. ", reveal));
  reveal.addEventListener("click", () => setTraits(prediction, { revealed: true }), { signal });
  return root;
}

/** Calls `changed()` whenever the kernel sets one of these traits. */
function onTraits(model, traits, changed, signal) {
  for (const trait of traits) model.on(`change:${trait}`, changed);
  signal.addEventListener("abort", () => {
    for (const trait of traits) model.off(`change:${trait}`, changed);
  });
}

/** Sends what the reader chose to the kernel, without waiting for it. */
function setTraits(model, traits) {
  for (const [trait, value] of Object.entries(traits)) model.set(trait, value);
  model.save_changes();
}

/** The card of a widget: its heading, and a place in it for a few words about what is shown. */
function card(name, title) {
  const root = make("div", { class: "shardlab-widget", "data-widget": name });
  const head = make("div", { class: "shardlab-head" }, make("span", { class: "shardlab-title" }, title));
  const sub = make("span", { class: "shardlab-sub" });
  head.append(sub);
  root.append(head);
  return { root, head, sub };
}

/**
 * The parts of every widget: its card, rows of controls that stay in view (a list of nodes is one row),
 * other nodes `above` the plot, the plot, which receives the keys that `label` explains, a line that
 * describes the selection or shows `hint`, small print, and the table of `headings` and `rows()`.
 * `draw` is createStage's. `point({ x, y })` is called while the pointer is on the plot, `point(null)`
 * once it has left; `keys()` are for handleKeys.
 * Returns { root, head, sub, plot, stage, detail, small, refresh(alternative), mark(text, values) }:
 * `refresh` when the contents have changed, `mark` to describe the selection, in words and in `root.dataset`.
 */
function frame({
  name, title, label, hint = "", scene, controls = [], above = [], small: print, headings, rows, draw, point, keys, signal,
}) {
  const { root, head, sub } = card(name, title);
  const plot = make("div", { class: "shardlab-plot", tabindex: "0", role: "group", "aria-label": label });
  const detail = make("p", { class: "shardlab-detail", "aria-live": "polite", "data-hint": hint });
  const small = make("p", { class: "shardlab-small" }, print ?? "");
  const rowOf = (nodes) => (Array.isArray(nodes) ? make("div", { class: "shardlab-settings" }, ...nodes) : nodes);
  const sticky = make("div", { class: "shardlab-sticky" }, ...controls.map(rowOf));
  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const table = tableDetails(headings, rows, signal);
  root.append(...(controls.length ? [sticky] : []), ...above, plot, detail);
  root.append(...(print === undefined ? [] : [small]), table.node);
  const showTip = pointerTip(plot, detail, signal); // before other listeners, which may change the line
  if (point) handlePointer(plot, stage, point, signal);
  if (keys) handleKeys(plot, keys, signal);

  const refresh = (alternative) => {
    stage.canvas.setAttribute("aria-label", alternative);
    table.refresh();
  };
  let marked = {};
  const mark = (text, values = {}) => {
    for (const key of Object.keys(marked)) delete root.dataset[key];
    Object.assign(root.dataset, values);
    marked = values;
    detail.textContent = text;
    showTip();
    stage.redraw();
  };
  return { root, head, sub, plot, stage, detail, small, refresh, mark };
}

function handlePointer(plot, stage, point, signal) {
  plot.addEventListener("pointermove", (event) => point(stage.at(event)), { signal });
  plot.addEventListener("pointerleave", () => point(null), { signal });
}

/**
 * The line of details, repeated at the pointer while the line itself is out of view. Call the returned function
 * when the line has changed. It is a popover, so that nothing around the picture cuts it off; screen readers read
 * the line.
 */
function pointerTip(plot, detail, signal) {
  const distance = 14;
  const tip = make("div", { class: "shardlab-tip", popover: "manual", "aria-hidden": "true" });
  let pointer = null; // where it is on the plot
  const isInView = () => {
    const { left, bottom } = detail.getBoundingClientRect();
    return detail.contains(document.elementFromPoint(left + 1, bottom - 1)); // of null: false
  };
  const show = () => {
    if (!pointer || !detail.textContent || !tip.showPopover || isInView()) return tip.remove();
    tip.textContent = detail.textContent;
    if (!tip.isConnected) {
      plot.after(tip);
      tip.showPopover();
    }
    const { innerWidth, innerHeight } = window;
    const below = pointer.y + distance;
    const fits = below + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(Math.min(pointer.x + distance, innerWidth - tip.offsetWidth - distance), 0)}px`;
    tip.style.top = `${fits ? below : Math.max(pointer.y - distance - tip.offsetHeight, 0)}px`;
  };
  const leave = () => ((pointer = null), show());
  plot.addEventListener("pointermove", ({ clientX: x, clientY: y }) => ((pointer = { x, y }), show()), { signal });
  for (const type of ["pointerleave", "keydown"]) plot.addEventListener(type, leave, { signal });
  document.addEventListener("scroll", leave, { capture: true, passive: true, signal });
  return show;
}

/** Calls `drag({ x, y })` where the plot is pressed, and while the pointer then moves. */
function handleDrag(plot, stage, drag, signal) {
  plot.addEventListener("pointerdown", (event) => drag(stage.at(event)), { signal });
  plot.addEventListener("pointermove", (event) => event.buttons && drag(stage.at(event)), { signal });
}

/**
 * Keys pressed on the node or in it. `moves()` returns { key's name: its function } and is called for each key.
 * A lower-case letter also handles its capital; "Shift+ArrowLeft" may differ from "ArrowLeft". Not
 * handled: keys with Ctrl, Alt or Meta, keys typed into a field, and keys that press a button.
 */
function handleKeys(node, moves, signal) {
  const onKeyDown = (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target !== node && target.matches("input, select, textarea")) return;
    if ([" ", "Enter"].includes(key) && target.matches("button, summary")) return;
    const all = moves();
    const move = (event.shiftKey && all[`Shift+${key}`]) || all[key] || all[key.toLowerCase()];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation(); // otherwise the notebook would move to another cell
    move();
  };
  node.addEventListener("keydown", onKeyDown, { signal });
}
