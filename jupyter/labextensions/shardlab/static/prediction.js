// Bytes, counts and seconds as text, with the same functions as units.py.

function formatBytes(count) {
  if (count < 1024) return `${Math.round(count)} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (value < 999.95) return `${value.toFixed(1)} ${unit}`;
  }
  return `${(value / 1024).toFixed(1)} PiB`;
}

function exactBytes(count) {
  const exact = `${Math.round(count).toLocaleString("en-US")} ${count === 1 ? "byte" : "bytes"}`;
  return count < 1024 ? exact : `${exact} (${formatBytes(count)})`;
}

function formatSeconds(seconds) {
  if (seconds === 0) return "0 s";
  let [unit, value] = ["µs", seconds * 1e6];
  if (value >= 999.5) [unit, value] = ["ms", seconds * 1e3];
  if (value >= 999.5) [unit, value] = ["s", seconds];
  return `${threeDigits(value)} ${unit}`;
}

function threeDigits(value) {
  return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

/** In powers of 1000: formatSi(20e9, "B") is 20 GB, not GiB. */
function formatSi(amount, unit) {
  let [value, prefix] = [amount, ""];
  for (const larger of "kMGTPE") {
    if (value < 999.5) break;
    [value, prefix] = [value / 1000, larger];
  }
  return `${Number(value.toPrecision(3))} ${prefix}${unit}`;
}

/** A number of things: 8,192, 1.25M, 10B, 1T. */
function formatCount(count) {
  if (count < 1e6) return Math.round(count).toLocaleString("en-US");
  return formatSi(count, "").replace("G", "B").replace(" ", "");
}

/** 1 rank, 8,192 tokens; `nouns` if the plural is irregular. */
function plural(count, noun, nouns = `${noun}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? noun : nouns}`;
}

/** "rank 5", or "rank 5 on node 1" if the scene has several nodes. */
function rankName({ nodes }, rank) {
  return nodes.length ? `rank ${rank} on node ${nodes[rank]}` : `rank ${rank}`;
}

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

// Sliders, choices and checkboxes, shared by all widgets.

const CONTROL_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown", " "];

/** Stops these keys at the control; otherwise the notebook would handle them as well. */
function keepKeys(input, signal) {
  input.addEventListener(
    "keydown",
    (event) => {
      if (CONTROL_KEYS.includes(event.key)) event.stopPropagation();
    },
    { signal },
  );
}

/**
 * A labeled slider that shows its value: `format(value)` is the text next to it. A slider over
 * orders of magnitude has exponents as values: `format: (x) => String(10 ** x)`.
 * Returns { node, input, value (to read), set(value) }; `set` does not call `onInput`.
 */
function slider({ label, min, max, step = 1, value, format = String, onInput = () => {}, signal }) {
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label });
  const output = make("output", { class: "shardlab-value" });
  const node = make("label", { class: "shardlab-slider" }, make("span", {}, label), input, output);
  const show = () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    node.dataset.value = input.value;
  };
  input.addEventListener("input", () => (show(), onInput(Number(input.value))), { signal });
  keepKeys(input, signal);
  show();
  return {
    node,
    input,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = next;
      show();
    },
  };
}

/**
 * A slider over a list of numbers. `set` adds a number that is not in the list. Returns { node,
 * set(number) }; `onInput` gets a number too.
 */
function listSlider({ values, value, format = String, onInput, ...rest }) {
  const listed = [...values];
  const control = slider({
    ...rest, min: 0, max: listed.length - 1, value: 0,
    format: (index) => format(listed[index]), onInput: (index) => onInput(listed[index]),
  });
  const set = (next) => {
    if (!listed.includes(next)) {
      listed.push(next);
      listed.sort((a, b) => a - b);
      control.input.max = listed.length - 1;
    }
    control.set(listed.indexOf(next));
  };
  set(value);
  return { node: control.node, set };
}

/** A choice whose options are "yes" and "no", and whose value is true or false. */
function yesNo({ value, onInput, ...rest }) {
  const words = (isYes) => (isYes ? "yes" : "no");
  const { node, set } = choice({ ...rest, value: words(value), onInput: (next) => onInput(next === "yes") });
  return { node, set: (next) => set(words(next)) };
}

let groups = 0; // radio buttons with the same name are one group on the whole page

/**
 * A row of labeled radio buttons, one of them chosen. `options`: [[value, text], ...]; a value is
 * a string. Returns { node, value (to read), set(value) }; `set` does not call `onInput`.
 */
function choice({ label, options, value, onInput = () => {}, signal }) {
  groups += 1;
  const name = `shardlab-choice-${groups}-${Math.random().toString(36).slice(2)}`;
  const inputs = new Map();
  const row = make("span", { class: "shardlab-options" });
  for (const [key, text] of options) {
    const input = make("input", { type: "radio", name, value: key });
    input.addEventListener("change", () => (mark(), onInput(key)), { signal });
    keepKeys(input, signal);
    inputs.set(String(key), input);
    row.append(make("label", {}, input, make("span", {}, text)));
  }
  const node = make(
    "div", { class: "shardlab-choice", role: "radiogroup", "aria-label": label },
    make("span", {}, label), row,
  );
  const chosen = () => [...inputs].find(([, input]) => input.checked)?.[0];
  const mark = () => (node.dataset.value = chosen() ?? "");
  const set = (next) => {
    for (const [key, input] of inputs) input.checked = key === String(next);
    mark();
  };
  set(value);
  return {
    node,
    get value() {
      return chosen();
    },
    set,
  };
}

/**
 * A row of checkboxes. `options`: [[value, text], ...]; `onInput` gets the values that are checked.
 * Returns { node, set(values) }.
 */
function checkList({ label, options, onInput, signal }) {
  const inputs = options.map(([value]) => make("input", { type: "checkbox", value }));
  const checked = () => inputs.filter((input) => input.checked).map(({ value }) => value);
  for (const input of inputs) {
    input.addEventListener("change", () => onInput(checked()), { signal });
    keepKeys(input, signal);
  }
  const labels = inputs.map((input, index) => make("label", {}, input, make("span", {}, options[index][1])));
  const node = make(
    "div", { class: "shardlab-choice", role: "group", "aria-label": label },
    make("span", {}, label), make("span", { class: "shardlab-options" }, ...labels),
  );
  const set = (values) => {
    for (const input of inputs) input.checked = values.includes(input.value);
  };
  return { node, set };
}

// Drawing: a canvas in the page's theme, and the marks of scene.py.

const THEMED = ["text", "muted", "rule", "surface"];
const MIN_TEXT = 11; // in pixels of the page, even if the picture is scaled down

function readTheme(node) {
  const style = getComputedStyle(node);
  const theme = { font: style.fontFamily };
  for (const role of THEMED) theme[role] = style.getPropertyValue(`--shardlab-${role}`).trim();
  return theme;
}

/**
 * A canvas in the plot that keeps its picture sharp and in the page's theme.
 * `draw(context, theme)` paints in coordinates of width x height and returns the number of marks.
 * Each full redraw is timed in data-redraw-ms.
 * Returns { canvas, redraw(), resize(height), at(event) }; `at` gives an event's position in these coordinates.
 */
function createStage({ root, plot, width, height, label = "", draw, signal }) {
  const canvas = make("canvas", { role: "img", "aria-label": label });
  plot.append(canvas);
  root.style.maxWidth = `calc(${width + 2}px + 2 * var(--shardlab-padding))`; // with its border
  const context = canvas.getContext("2d");
  let theme = null;

  const redraw = () => {
    if (theme === null) return;
    const began = performance.now();
    const scale = canvas.width / width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    root.dataset.drawn = draw(context, theme);
    root.dataset.redrawMs = (performance.now() - began).toFixed(2);
  };
  const fit = () => {
    if (canvas.clientWidth === 0) return; // not on the page yet
    const pixels = Math.round(canvas.clientWidth * window.devicePixelRatio);
    const high = Math.round((pixels * height) / width);
    if (canvas.width !== pixels || canvas.height !== high) [canvas.width, canvas.height] = [pixels, high];
    theme = readTheme(root);
    theme.minText = (MIN_TEXT * width) / canvas.clientWidth;
    redraw();
  };
  const resize = (next) => {
    height = next;
    canvas.style.aspectRatio = `${width} / ${height}`;
    fit();
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = width / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  };

  resize(height);
  const resized = new ResizeObserver(fit);
  resized.observe(canvas);
  const themed = new MutationObserver(fit); // JupyterLab changes the theme through attributes of the body
  for (const node of [document.documentElement, document.body]) {
    themed.observe(node, {
      attributeFilter: ["class", "style", "data-jp-theme-name", "data-jp-theme-light"],
    });
  }
  signal.addEventListener("abort", () => {
    resized.disconnect();
    themed.disconnect();
  });
  return { canvas, redraw, resize, at };
}

/**
 * createStage's `draw`, but drawn again only at another size or in another theme, for pictures of which
 * only the selection changes.
 */
function keptPicture(width, draw) {
  let kept = null;
  return (context, theme) => {
    const { canvas } = context;
    const key = JSON.stringify([canvas.width, canvas.height, theme]);
    if (kept?.key !== key) {
      const image = new OffscreenCanvas(canvas.width, canvas.height);
      const pen = image.getContext("2d");
      pen.scale(canvas.width / width, canvas.width / width);
      kept = { key, image, drawn: draw(pen, theme) };
    }
    context.save();
    context.resetTransform();
    context.drawImage(kept.image, 0, 0);
    context.restore();
    return kept.drawn;
  };
}

/** Strokes the path so that it is visible on light and dark marks. */
function strokeVisibly(context, theme, width) {
  for (const [color, lineWidth] of [[theme.surface, 4], [theme.text, width]]) {
    context.strokeStyle = color;
    context.lineWidth = lineWidth;
    context.stroke();
  }
}

/** A vertical line through a plot, for the selected moment. */
function paintMoment(context, theme, x, { top, bottom }) {
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, bottom);
  strokeVisibly(context, theme, 1.5);
}

/** Calls `draw()` with everything outside of a box cut off. Returns what it returns. */
function clipped(context, { left, right, top, bottom }, draw) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  const drawn = draw();
  context.restore();
  return drawn;
}

function roundedBar(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

/** Stripes of one color, like scene.py's patterns. */
function hatch(context, color) {
  const tile = new OffscreenCanvas(10, 10);
  const pen = tile.getContext("2d");
  pen.fillStyle = pen.strokeStyle = color;
  pen.globalAlpha = 0.22;
  pen.fillRect(0, 0, 10, 10);
  pen.globalAlpha = 0.95;
  pen.lineWidth = 2;
  pen.beginPath();
  for (const shift of [-10, 0, 10]) {
    pen.moveTo(shift - 1, 11);
    pen.lineTo(shift + 11, -1);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

/** Draws the marks of scene.py. Returns their number. */
function paint(context, marks, theme) {
  const colored = (color) => (THEMED.includes(color) ? theme[color] : color);
  for (const mark of marks) {
    const { kind, fill = "none", stroke = "none", opacity = 1 } = mark;
    context.globalAlpha = opacity;
    if (kind === "text") {
      paintText(context, mark, theme);
      continue;
    }
    const shape = kind === "path" ? new Path2D(mark.d) : null;
    if (fill !== "none") {
      context.fillStyle = mark.hatch ? hatch(context, fill) : colored(fill);
      if (shape) context.fill(shape);
      else if (mark.radius) {
        roundedBar(context, mark.x, mark.y, mark.width, mark.height, mark.radius);
        context.fill();
      } else context.fillRect(mark.x, mark.y, mark.width, mark.height);
    }
    if (stroke !== "none") {
      context.strokeStyle = colored(stroke);
      context.lineWidth = mark.stroke_width ?? 1;
      context.setLineDash(mark.dash ? mark.dash.split(" ").map(Number) : []);
      if (shape) context.stroke(shape);
      else {
        roundedBar(context, mark.x, mark.y, mark.width, mark.height, mark.radius ?? 0);
        context.stroke();
      }
      context.setLineDash([]);
    }
  }
  context.globalAlpha = 1;
  return marks.length;
}

/** Text that would be too small is drawn larger, but narrowed so that it still fits. */
function paintText(context, mark, theme) {
  const { x, y, text, size = 12, weight = 400, anchor = "start", fill = "text" } = mark;
  context.font = fontOf(theme, size, weight);
  context.textAlign = anchor === "middle" ? "center" : anchor;
  context.fillStyle = THEMED.includes(fill) ? theme[fill] : fill;
  const narrower = Math.min(1, size / theme.minText) ** 0.75;
  const room = Math.min(mark.room ?? Infinity, context.measureText(text).width * narrower);
  context.fillText(text, x, y, room);
}

/** A font for text of this size, or of the smallest size that is legible here. */
function fontOf(theme, size, weight = 400) {
  return `${weight} ${Math.max(size, theme.minText)}px ${theme.font}`;
}

/** A focus ring that is visible on light and dark marks. */
function paintFocus(context, theme, x, y, width, height) {
  context.lineWidth = 4;
  context.strokeStyle = theme.surface;
  context.strokeRect(x, y, width, height);
  context.lineWidth = 2;
  context.strokeStyle = theme.text;
  context.strokeRect(x, y, width, height);
}

// Reads what a reader types as a guess: a number with a unit, or arithmetic such as 2 * 3/4 * 1.5 MiB.

const BYTES = ["b", "byte", "bytes"];
const OF_BYTES = {
  ...Object.fromEntries(BYTES.map((word) => [word, 1])),
  ...Object.fromEntries(
    [..."kmgt"].flatMap((prefix, i) => [
      [prefix, 1000 ** (i + 1)], [`${prefix}b`, 1000 ** (i + 1)], [`${prefix}ib`, 1024 ** (i + 1)],
    ]),
  ),
};
const FACTORS = {
  B: OF_BYTES,
  bytes: OF_BYTES, // shown without a prefix
  s: { s: 1, ms: 1e-3, us: 1e-6, µs: 1e-6, min: 60, h: 3600 },
  "": { "%": 0.01, x: 1, times: 1, k: 1e3, m: 1e6 },
};

const HINTS = {
  B: "Units and arithmetic work: 1.5 MiB, 3 MB, 2 * 262144.",
  s: "Units and arithmetic work: 20 ms, 3 * 0.5.",
  "": "Arithmetic works: 3/4, 2 * 7.",
};

class Unreadable extends Error {}

/** The number that `text` means, in `unit`. Throws Unreadable with a message for the reader. */
function readAmount(text, unit, maximum = null) {
  const words = tokens(text);
  if (!words.length) throw new Unreadable("Type a number first.");
  const value = sum(words, unit);
  if (words.length) throw new Unreadable(`Unexpected “${words.join(" ")}”: write one number.`);
  if (!Number.isFinite(value)) throw new Unreadable("The result is not a finite number.");
  if (value < 0) throw new Unreadable("A negative number cannot be right here.");
  if (maximum !== null && value > maximum) throw new Unreadable(`At most ${plain(maximum)}.`);
  return value;
}

function tokens(text) {
  const tidy = text
    .replace(/[×·]/g, "*").replace(/÷/g, "/").replace(/−/g, "-")
    .replace(/(\d)[ _\u00a0\u202f](?=\d{3}(?!\d))/g, "$1");
  const pattern = /\d[\d.,]*(?:e[+-]?\d+)?|[.,]\d+|[-+*/()]|[^\s\d.,+*/()-]+|\S/gi;
  return tidy.match(pattern) ?? [];
}

function sum(words, unit) {
  let value = product(words, unit);
  while (["+", "-"].includes(words[0])) {
    value = words.shift() === "+" ? value + product(words, unit) : value - product(words, unit);
  }
  return value;
}

function product(words, unit) {
  let value = factor(words, unit);
  while (["*", "/"].includes(words[0])) {
    value = words.shift() === "*" ? value * factor(words, unit) : value / factor(words, unit);
  }
  return value;
}

function factor(words, unit) {
  const word = words.shift();
  let value;
  if (word === "-") return -factor(words, unit);
  if (word === "(") {
    value = sum(words, unit);
    if (words.shift() !== ")") throw new Unreadable("A closing parenthesis is missing.");
  } else if (/^[\d.,]*\d/.test(word ?? "")) {
    value = readNumber(word, unit);
  } else {
    throw new Unreadable(word === undefined ? "A number is missing at the end." : `“${word}” is not a number.`);
  }
  return /^[^-+*/()\d.,]/.test(words[0] ?? "+") ? value * unitFactor(words.shift(), unit) : value;
}

function unitFactor(word, unit) {
  const known = FACTORS[unit] ?? {};
  const name = word.toLowerCase();
  if (name in known) return known[name];
  if (unit && unit.toLowerCase().startsWith(name)) return 1;
  const units = known === OF_BYTES ? "B, kB, MB, GB, KiB, MiB or GiB" : unit === "s" ? "s, ms or min" : unit || "none";
  throw new Unreadable(`“${word}” is not a unit here; units: ${units}.`);
}

/** Commas separate thousands in 262,144 and 1,048,576, and are decimal in 1,5 and 0,375. */
function readNumber(word, unit) {
  const [digits, exponent = "0"] = word.toLowerCase().split("e");
  let text = digits;
  if (/^[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/.test(text)) {
    if (unit !== "B" && /^\d+,\d{3}$/.test(text)) {
      const [whole, rest] = text.split(",");
      throw new Unreadable(`“${word}” can mean ${whole}${rest} or ${whole}.${rest}: write one of these.`);
    }
    text = text.replaceAll(",", "");
  } else {
    text = text.replace(",", ".");
  }
  if (!/^(\d+\.?\d*|\.\d+)$/.test(text)) throw new Unreadable(`“${word}” is not a number.`);
  return Number(`${text}e${exponent}`);
}

// How a guess compares with the measurement, in words: the same functions as in verdict.py.

const EQUAL = 0.02;
const CLOSE = 0.1;
const ALIKE = 0.2;
const NEGLIGIBLE = 0.01;

function plain(number, digits = 4) {
  const rounded = Math.abs(number) < 1000 ? Number(number.toPrecision(digits)) : Math.round(number);
  return rounded.toLocaleString("en-US", { maximumFractionDigits: 12 });
}

function formatAmount(amount, unit) {
  if (unit === "B") return formatBytes(amount);
  if (unit === "s") return formatSeconds(amount);
  return `${plain(amount)} ${unit}`.trim();
}

function judgeNumbers(guess, answer, named, labels, source) {
  const off = deviations(guess, answer);
  const largest = Math.max(...off);
  if (largest <= EQUAL) return { outcome: "right", text: largest === 0 ? "Right." : "Right, within 2 %." };
  const ratio = commonRatio(guess, answer, source);
  const each = guess.length > 1 ? "each " : "";
  const right = off.filter((share) => share <= EQUAL).length;
  const prefix = ratio ? `${each}${ratio}: ` : `${right} of ${off.length} right: `;
  for (const [name, values] of Object.entries(named)) {
    if (Math.max(...deviations(guess, values)) <= EQUAL) {
      return { outcome: "named", text: sentence(`${prefix}that is ${name}`) };
    }
  }
  if (largest <= CLOSE) {
    return { outcome: "close", text: sentence(`${each}within 10 %${ratio && !each ? `: ${ratio}` : ""}`) };
  }
  const distances = Object.entries(named).map(([name, values]) => [Math.max(...deviations(guess, values)), name]);
  const [distance, nearest] = distances.sort(([a], [b]) => a - b)[0] ?? [Infinity];
  if (each && distance <= ALIKE && distance < largest) {
    return { outcome: "named", text: sentence(`${prefix}that is, within 20 %, ${nearest}`) };
  }
  if (ratio) return { outcome: "off", text: sentence(`${each}${ratio}`) };
  const worst = off.indexOf(largest);
  const close = off.filter((share) => share <= CLOSE).length;
  const error = difference(guess[worst], answer[worst], source);
  const text = `${close} of ${off.length} within 10 %; furthest off: ${labels[worst]}, ${error}`;
  return { outcome: "off", text: sentence(text + namedParts(guess, off, named, labels)) };
}

function namedParts(guess, off, named, labels) {
  const matches = new Map();
  const equal = Object.entries(named).map(([name, values]) => [name, deviations(guess, values)]);
  labels.forEach((label, part) => {
    const found = equal.find(([, shares]) => off[part] > EQUAL && shares[part] <= EQUAL);
    if (found) matches.set(found[0], [...(matches.get(found[0]) ?? []), label]);
  });
  return [...matches].map(([name, parts]) => `; ${parts.join(", ")}: that is ${name}`).join("");
}

function judgeOptions(guess, answer, named) {
  const missing = answer.filter((option) => !guess.includes(option));
  const wrong = guess.filter((option) => !answer.includes(option));
  if (!missing.length && !wrong.length) return { outcome: "right", text: "Right." };
  for (const [name, values] of Object.entries(named)) {
    if (values.length === guess.length && values.every((option) => guess.includes(option))) {
      return { outcome: "named", text: sentence(`${listed(guess)}: that is ${name}`) };
    }
  }
  if (guess.length === 1 && answer.length === 1) {
    return { outcome: "off", text: `Not “${guess[0]}” but “${answer[0]}”.` };
  }
  const parts = [`${answer.length - missing.length} of ${answer.length} found`];
  if (missing.length) parts.push(`missing: ${listed(missing)}`);
  if (wrong.length) parts.push(`wrong: ${listed(wrong)}`);
  return { outcome: "off", text: sentence(parts.join("; ")) };
}

function deviations(guess, answer) {
  const least = NEGLIGIBLE * Math.max(...answer.map(Math.abs));
  return guess.map((value, i) => {
    const part = Math.abs(value - answer[i]);
    const whole = Math.max(Math.abs(answer[i]), least);
    return whole ? part / whole : part === 0 ? 0 : Infinity;
  });
}

function commonRatio(guess, answer, source) {
  const divides = answer.every((value) => value !== 0);
  if (guess.length > 1 && !divides) return "";
  const ratios = divides ? guess.map((value, i) => value / answer[i]) : [0];
  if (Math.max(...ratios) - Math.min(...ratios) > EQUAL * Math.max(...ratios)) return "";
  return difference(guess[0], answer[0], source);
}

function difference(guess, answer, source) {
  if (answer === 0) return `the ${source} value is 0`;
  const ratio = guess / answer;
  if (ratio === 0) return `0 instead of the ${source} value`;
  if (ratio >= 2 * (1 - EQUAL) || ratio <= 0.5 * (1 + EQUAL)) {
    return `${plain(ratio, 2)} times the ${source} value`;
  }
  return `${(100 * Math.abs(ratio - 1)).toFixed(0)} % too ${ratio > 1 ? "high" : "low"}`;
}

const listed = (options) => (options.length ? options.join(", ") : "none");
const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

// A guess drawn as a line over axes: the same functions as in guess_line.py.

const LINE = { height: 232, left: 64, right: 612, top: 30, bottom: 184 };

function circle(x, y, fill) {
  const at = `M${(x - 6).toFixed(2)} ${y.toFixed(2)}`;
  return { kind: "path", d: `${at}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z`, fill };
}

function diamond(x, y, fill) {
  const corners = [[x, y - 7], [x + 7, y], [x, y + 7], [x - 7, y]];
  const d = `M${corners.map((corner) => corner.map((each) => each.toFixed(2)).join(" ")).join("L")}Z`;
  return { kind: "path", d, fill, stroke: "surface" };
}

const lineX = (index, count) => LINE.left + ((LINE.right - LINE.left) * (index + 0.5)) / count;
const lineY = (amount, top) => LINE.bottom - ((LINE.bottom - LINE.top) * amount) / top;

function axesMarks(labels, axis, top, unit) {
  const { left, right, bottom } = LINE;
  const marks = [];
  for (const amount of [0, top / 2, top]) {
    const y = lineY(amount, top);
    marks.push({ kind: "path", d: `M${left} ${y}L${right} ${y}`, stroke: "rule" });
    const text = amount ? formatAmount(amount, unit) : "0";
    marks.push({ kind: "text", x: left - 10, y: y + 4, text, anchor: "end", fill: "muted" });
  }
  for (const [i, text] of labels.entries()) {
    marks.push({ kind: "text", x: lineX(i, labels.length), y: bottom + 20, text, anchor: "middle" });
  }
  const middle = (left + right) / 2;
  marks.push({ kind: "text", x: middle, y: bottom + 40, text: axis, anchor: "middle", fill: "muted" });
  return marks;
}

/** A line through the values; a guess that is not complete has null for some of them. */
function lineMarks(values, top, color, isGuess) {
  const places = values.flatMap((v, i) => (v === null ? [] : [[lineX(i, values.length), lineY(v, top)]]));
  if (!places.length) return [];
  const d = `M${places.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`;
  const shape = isGuess ? diamond : circle;
  const dash = isGuess ? { dash: "6 4" } : {};
  return [
    { kind: "path", d, stroke: color, stroke_width: 2, ...dash },
    ...places.map(([x, y]) => shape(x, y, color)),
  ];
}

// A prediction: the reader's guess is parsed in amount.js, and locked once it is committed.

/** One field for each label, or a single one. Like the options below: { node, read, show, lock }. */
function numberFields({ question, unit, labels, maximum, line }, signal) {
  const axis = line?.axis ?? "";
  const node = make("div", { class: "shardlab-fields" });
  let changed = () => {};
  const fields = (labels.length ? labels : [""]).map((label) => {
    const name = [axis, label || question, unit].filter(Boolean).join(", ");
    const input = make("input", { type: "text", inputmode: "text", autocomplete: "off", "aria-label": name });
    const reading = make("span", { class: "shardlab-reading" }); // what the text means
    const look = () => {
      input.removeAttribute("aria-invalid");
      reading.textContent = "";
      const text = input.value.trim();
      try {
        const meaning = amountInWords(readAmount(text, unit, maximum), unit);
        const isSaid = meaning === `${text} ${unit}`.trim() || meaning === text || (line && meaning.endsWith(`(${text})`));
        if (!isSaid) reading.textContent = `= ${meaning}`;
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error; // reported when the reader commits
      }
      changed();
    };
    input.addEventListener("input", look, { signal });
    const parts = [input, make("span", { class: "shardlab-unit" }, unit), reading];
    node.append(make("label", {}, ...(label ? [make("span", {}, label)] : []), ...parts));
    return { input, look, label };
  });
  const read = () => {
    const numbers = fields.map(({ input, label }) => {
      try {
        return readAmount(input.value, unit, maximum);
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error;
        input.setAttribute("aria-invalid", "true");
        input.focus();
        throw new Unreadable(label ? `${label}: ${error.message}` : error.message);
      }
    });
    return labels.length ? numbers : numbers[0];
  };
  const show = (value) => {
    const numbers = [value].flat();
    for (const [i, { input, look }] of fields.entries()) {
      let typed = null;
      try {
        typed = readAmount(input.value, unit, maximum);
      } catch {} // nothing readable was typed in this view
      if (typed !== numbers[i]) input.value = String(numbers[i]);
      look();
    }
  };
  const lock = (locked) => {
    for (const { input } of fields) input.readOnly = locked;
  };
  const valueAt = (i) => {
    try {
      return readAmount(fields[i].input.value, unit, maximum);
    } catch {
      return null; // not typed or drawn yet
    }
  };
  const set = (i, value) => {
    fields[i].input.value = unit === "B" ? formatBytes(value) : plain(value, 3).replaceAll(",", "");
    fields[i].look();
  };
  const onChange = (listener) => (changed = listener);
  return { node, read, show, lock, valueAt, set, onChange, focus: () => fields[0].input.focus() };
}

/** Axes on which to draw the numbers with the mouse; with the keyboard, they are typed into the fields. */
function drawingOf(root, scene, fields, isLocked, signal) {
  const { labels, line, unit, color, question } = scene;
  const plot = make("div", { class: "shardlab-plot shardlab-drawing" });
  const values = () => labels.map((_, i) => fields.valueAt(i));
  const label = `${question}, over ${line.axis}: axes to draw on. The fields below do the same.`;
  const stage = createStage({ root, plot, width: 640, height: LINE.height, label, draw, signal });

  function draw(context, theme) {
    const drawn = values();
    const top = Math.max(line.top, ...drawn.filter((value) => value !== null));
    return paint(context, [...axesMarks(labels, line.axis, top, unit), ...lineMarks(drawn, top, color, true)], theme);
  }

  const put = (event) => {
    if (isLocked() || event.buttons !== 1) return;
    const { x, y } = stage.at(event);
    const share = (x - LINE.left) / (LINE.right - LINE.left);
    const i = clamp(Math.floor(share * labels.length), 0, labels.length - 1);
    const height = clamp((LINE.bottom - y) / (LINE.bottom - LINE.top), 0, 1);
    fields.set(i, (Math.round(100 * height) / 100) * line.top);
  };
  stage.canvas.addEventListener("pointerdown", put, { signal });
  stage.canvas.addEventListener("pointermove", put, { signal });
  fields.onChange(stage.redraw);
  return plot;
}

function optionFields({ question, options, several }, signal) {
  const pairs = options.map((option) => [option, option]);
  const node = make("div", { class: "shardlab-fields" });
  const row = make("span", { class: "shardlab-options" });
  const one = several ? null : choice({ label: question, options: pairs, value: null, signal });
  if (several) {
    for (const option of options) {
      const input = make("input", { type: "checkbox", value: option });
      row.append(make("label", {}, input, make("span", {}, option)));
    }
    node.append(row);
  } else {
    one.node.firstChild.remove(); // the question is above
    node.append(one.node);
  }
  const inputs = [...node.querySelectorAll("input")];
  const read = () => {
    const chosen = inputs.filter((input) => input.checked).map((input) => input.value);
    if (several) return chosen;
    if (!chosen.length) {
      inputs[0].focus();
      throw new Unreadable("Choose one of them first.");
    }
    return chosen[0];
  };
  const show = (value) => {
    for (const input of inputs) input.checked = [value].flat().includes(input.value);
  };
  const lock = (locked) => {
    for (const input of inputs) input.disabled = locked;
  };
  return { node, read, show, lock, focus: () => inputs[0].focus() };
}

/**
 * Shift+Enter moves the focus past this cell's output, to the next cell. If Tab is the first key pressed there,
 * `focus()` is called instead of leaving the field behind.
 */
function handleFirstTab(root, focus, signal) {
  const first = new AbortController();
  signal.addEventListener("abort", () => first.abort());
  const look = (event) => {
    if (["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    first.abort();
    const cell = root.closest(".jp-Cell");
    const isNext = cell && document.activeElement?.previousElementSibling === cell;
    if (event.key !== "Tab" || event.shiftKey || !isNext) return;
    event.preventDefault();
    event.stopPropagation();
    focus();
  };
  for (const type of ["keydown", "pointerdown"]) {
    document.addEventListener(type, look, { capture: true, signal: first.signal });
  }
}

const amountInWords = (value, unit) => (unit === "B" ? exactBytes(value) : formatAmount(value, unit));

function build(model, signal) {
  const scene = model.get("scene");
  const { question, unit, labels, options, several, color } = scene;
  const root = make("div", { class: "shardlab-widget shardlab-prediction", "data-widget": "prediction" });
  root.style.setProperty("--shardlab-predicted", color);
  const fields = options.length ? optionFields(scene, signal) : numberFields(scene, signal);
  const commit = make("button", { type: "submit" }, "Commit");
  const change = make("button", { type: "button" }, "Change");
  const hint = scene.line ? "Draw with the mouse, or type the numbers." : options.length ? (several ? "Choose any number of them." : "Choose one.") : HINTS[unit] ?? HINTS[""];
  const status = make("p", { class: "shardlab-detail", role: "status", tabindex: "-1", "data-hint": hint });
  const group = make("fieldset", {}, make("legend", {}, question));
  const isLocked = () => model.get("value") !== null;
  if (scene.line) group.append(drawingOf(root, scene, fields, isLocked, signal));
  group.append(fields.node);
  const form = make("form", { novalidate: "", autocomplete: "off" }, group, commit, change, status);
  root.append(form);

  function inWords(value) {
    if (labels.length) return "Your guess is above."; // in its fields
    const words = typeof value === "number" ? amountInWords(value, unit) : listed([value].flat());
    return `Your guess: ${words}.`;
  }

  function show() {
    const value = model.get("value");
    const [committed, answered] = [value !== null, model.get("answered")];
    root.dataset.state = committed ? "committed" : "open";
    root.dataset.value = committed ? JSON.stringify(value) : "";
    if (committed) fields.show(value);
    fields.lock(committed);
    commit.hidden = committed;
    change.hidden = !committed || answered;
    delete status.dataset.error;
    if (!committed) {
      const hidden = "It has run. Guess before you read on: the next picture is hidden until then.";
      status.textContent = answered && !model.get("revealed") ? hidden : "";
    } else {
      const next = answered ? "The answer is below. To guess again, run this cell again." : scene.next ?? "Now run the next cells.";
      status.textContent = `${inWords(value)} ${next}`;
    }
  }

  form.addEventListener(
    "submit",
    (event) => {
      event.preventDefault();
      if (model.get("value") !== null) return;
      try {
        setTraits(model, { value: fields.read() });
        status.focus();
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error;
        status.textContent = error.message;
        status.dataset.error = "yes";
      }
    },
    { signal },
  );
  change.addEventListener("click", () => (setTraits(model, { value: null }), fields.focus()), { signal });
  form.addEventListener(
    "keydown",
    (event) => {
      // Typed keys belong to the form; the notebook gets only its shortcuts, such as Shift+Enter.
      const isShortcut = event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key === "Enter");
      if (!isShortcut) event.stopPropagation();
    },
    { signal },
  );
  onTraits(model, ["value", "answered", "revealed"], show, signal);
  show();
  if (!isLocked()) handleFirstTab(root, fields.focus, signal);
  return root;
}

export default widget(build);
