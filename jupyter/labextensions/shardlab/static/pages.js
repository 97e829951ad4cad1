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

// What moves animated pictures: a clock, and buttons.

/**
 * A clock. While it runs, each frame calls `advance(ms, isReduced)` with the time since the last call, then
 * `show()`; it stops when `advance` returns false. For readers who prefer reduced motion it advances only
 * every `stillMs`. Returns { start, stop, isRunning (to read), isReduced() }.
 */
function frameClock({ advance, show, stillMs, signal }) {
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  let pending = 0; // the next animation frame, 0 while it is stopped
  const stop = () => {
    cancelAnimationFrame(pending);
    pending = 0;
  };
  const start = () => {
    stop();
    let before = performance.now();
    const tick = (now) => {
      const passed = Math.max(now - before, 0);
      const waits = reduced.matches && passed < stillMs;
      if (!waits) before = now;
      pending = waits || advance(passed, reduced.matches) ? requestAnimationFrame(tick) : 0;
      show();
    };
    pending = requestAnimationFrame(tick);
    show();
  };
  signal.addEventListener("abort", stop);
  return {
    start,
    stop,
    get isRunning() {
      return pending !== 0;
    },
    isReduced: () => reduced.matches,
  };
}

/** A button that plays and pauses. `show(isPlaying)` sets its icon and label. */
function playButton() {
  const [play, pause] = [icon("M2 1v12l11-6z"), icon("M2 1h4v12h-4zM8 1h4v12h-4z")];
  const node = button("Play (space)", play);
  const show = (isPlaying) => {
    node.replaceChildren(isPlaying ? pause : play);
    node.title = isPlaying ? "Pause (space)" : "Play (space)";
    node.setAttribute("aria-label", node.title);
  };
  return { node, show };
}

/**
 * Buttons to move step by step. `actions`: { first, back, play, forward, last }.
 * Returns { node, keys, show({ isPlaying, isFirst, isLast }) }; `keys` are for handleKeys.
 */
function stepButtons(actions, signal) {
  const play = playButton();
  const buttons = {
    first: button("To the start (Home)", icon("M2 2h2v10h-2zM12 2v10l-8-5z")),
    back: button("One step back (left arrow)", icon("M11 2v10l-8-5z")),
    play: play.node,
    forward: button("One step forward (right arrow)", icon("M3 2v10l8-5z")),
    last: button("To the end (End)", icon("M2 2v10l8-5zM10 2h2v10h-2z")),
  };
  for (const [name, node] of Object.entries(buttons)) {
    node.addEventListener("click", actions[name], { signal });
  }
  const node = make("div", { class: "shardlab-controls", role: "toolbar", "aria-label": "Steps" }, ...Object.values(buttons));
  const keys = {
    ArrowLeft: actions.back, ArrowRight: actions.forward, " ": actions.play,
    Home: actions.first, End: actions.last,
  };
  const show = ({ isPlaying, isFirst, isLast }) => {
    play.show(isPlaying);
    buttons.first.disabled = buttons.back.disabled = isFirst;
    buttons.last.disabled = buttons.forward.disabled = isLast;
  };
  return { node, keys, show };
}

// An opener with buttons: the animated SVG that a chapter's text shows, played twice when it is seen.

const REST_MS = 1500; // between the two rounds that it plays when it is first seen
const OF_A_PICTURE = ["svg", "title", "desc", "style", "rect", "path", "circle", "text"];

/** The element of an SVG's text, without what could run or load something: any notebook may name any file. */
function readPicture(text) {
  const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  for (const node of [...svg.querySelectorAll("*")]) {
    if (!OF_A_PICTURE.includes(node.localName)) node.remove();
  }
  for (const node of [svg, ...svg.querySelectorAll("*")]) {
    for (const { name } of [...node.attributes]) if (/^on|href$/i.test(name)) node.removeAttribute(name);
  }
  return svg.localName === "svg" && svg.dataset.playMs && svg.querySelector("style") ? svg : null;
}

/**
 * The picture and its buttons; `words` are its text alternative. The animations are CSS's: all of them are paused,
 * and set to the moment that is shown.
 */
function openerOf(svg, words) {
  const [playMs, delayMs] = [Number(svg.dataset.playMs), Number(svg.dataset.delayMs)];
  const moments = [0, ...svg.dataset.momentsMs.split(" ").map(Number), playMs];
  const { signal } = new AbortController(); // it lasts as long as its page
  const root = make("div", { class: "shardlab-widget shardlab-opener", "data-widget": "opener" });
  const plot = make("div", { class: "shardlab-plot", tabindex: "0", role: "img", "aria-label": words });
  const shadow = plot.attachShadow({ mode: "open" }); // its styles are for whole documents
  // As an image, it follows the system's theme; here JupyterLab's. It moves only when asked to.
  const style = svg.querySelector("style");
  style.textContent = style.textContent
    .replace("@media(prefers-color-scheme:dark){svg{", "@media all{svg.dark{")
    .replace("@media(prefers-reduced-motion:reduce)", "@media not all");
  Object.assign(svg.style, { display: "block", maxWidth: "100%", height: "auto" });
  shadow.append(svg);
  const steering = make("input", { type: "range", min: 0, max: playMs, step: 10, "aria-label": "Time in the recorded run" });
  let at = playMs;
  let again = 0; // how often it starts again on its own

  const advance = (ms) => {
    at += ms;
    if (again && at >= playMs + REST_MS) [again, at] = [again - 1, 0];
    if (!again) at = Math.min(at, playMs);
    return again > 0 || at < playMs;
  };
  const clock = frameClock({ advance, show, stillMs: 500, signal });

  function show() {
    svg.classList.toggle("dark", document.body.dataset.jpThemeLight === "false");
    for (const animation of shadow.getAnimations()) {
      animation.pause();
      animation.currentTime = delayMs + (at < playMs ? at : 1.1 * playMs); // after the end, the cursor is gone
    }
    const isPlaying = clock.isRunning;
    const shown = Math.min(at, playMs);
    steering.value = shown;
    steering.setAttribute("aria-valuetext", `${Math.round((100 * shown) / playMs)} %`);
    player.show({ isPlaying, isFirst: shown === 0, isLast: shown === playMs });
    Object.assign(root.dataset, { playing: isPlaying, atMs: Math.round(shown) });
  }

  function go(to) {
    clock.stop();
    [again, at] = [0, Math.min(to, playMs)];
    show();
  }

  function play() {
    if (clock.isRunning) return go(at);
    if (at === playMs) at = 0;
    clock.start();
  }

  const player = stepButtons(
    {
      first: () => go(0),
      back: () => go(moments.findLast((moment) => moment < at) ?? 0),
      play,
      forward: () => go(moments.find((moment) => moment > at) ?? playMs),
      last: () => go(playMs),
    },
    signal,
  );
  player.node.append(steering);
  steering.addEventListener("input", () => go(Number(steering.value)), { signal });
  keepKeys(steering, signal);
  for (const node of [plot, player.node]) handleKeys(node, () => player.keys, signal);
  // Two clicks on text open its editor.
  root.addEventListener("dblclick", (event) => event.stopPropagation(), { signal });
  root.append(make("div", { class: "shardlab-sticky" }, player.node), plot);

  let isNew = true;
  const seen = (entries) => {
    const { isIntersecting } = entries.at(-1);
    if (isIntersecting && isNew) {
      isNew = false;
      if (clock.isReduced()) return show();
      again = 1;
      return play();
    }
    return isIntersecting ? show() : go(at);
  };
  new IntersectionObserver(seen, { threshold: 0.6 }).observe(plot);
  new MutationObserver(show).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  show();
  return root;
}

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

// What JupyterLab adds to a page: buttons to openers, and widgets in place of some pictures, neither of which needs a
// kernel; and another try for widgets that come late.

const OPENER = '.jp-RenderedMarkdown img[src*="/openers/"]';
const LIVE = /\/live\/([a-z_]+)\.svg/;

/** What a widget's module expects of anywidget, with the state in this page only. */
class Model {
  #state;
  #listeners = new Map();

  constructor(state) {
    this.#state = { ...state };
  }

  get(name) {
    return this.#state[name];
  }

  set(name, value) {
    this.#state[name] = value;
    for (const listener of this.#listeners.get(`change:${name}`) ?? []) listener();
  }

  save_changes() {}

  on(event, listener) {
    this.#listeners.set(event, [...(this.#listeners.get(event) ?? []), listener]);
  }

  off(event, listener) {
    this.#listeners.set(event, (this.#listeners.get(event) ?? []).filter((each) => each !== listener));
  }
}

/** The widgets of `live/NAME.json`, one below the other. Only what is in this extension is loaded. */
async function liveWidgets(name) {
  const response = await fetch(new URL(`live/${name}.json`, import.meta.url));
  const widgets = await response.json();
  const models = new Map(widgets.map(({ id, state }) => [id, new Model(state)]));
  const host = { getModel: (id) => models.get(id) };
  const root = make("div", { class: "shardlab-live" });
  root.addEventListener("dblclick", (event) => event.stopPropagation());
  for (const { id, module } of widgets) {
    const el = make("div");
    root.append(el);
    const { default: its } = await import(new URL(`${module}.js`, import.meta.url));
    its.render({ model: models.get(id), el, host });
  }
  return root;
}

async function openerAt(image) {
  const response = await fetch(image.src);
  const svg = response.ok && readPicture(await response.text());
  return svg && openerOf(svg, image.alt);
}

/** Puts what plays in place of an image, unless something is missing: then the image stays. */
async function replace(image, replaced) {
  const name = LIVE.exec(image.src)?.[1];
  const found = await (name ? liveWidgets(name) : openerAt(image));
  // Without buttons, a link around the picture plays it, and what must be guessed first is folded.
  const shown = image.closest(name ? "details" : "a") ?? image;
  if (!found || replaced.has(image)) return;
  replaced.add(image); // it may have been tried for two addresses
  shown.replaceWith(found);
}

/** Watches JupyterLab's page for images of ours, which may be drawn, or told their source, at any time. */
export function watch({ shell }) {
  const retry = widgetRetries(shell);
  const styles = make("link", { rel: "stylesheet", href: new URL("pages.css", import.meta.url) });
  document.head.append(styles);
  const tried = new WeakMap(); // JupyterLab replaces the path in the text by an address
  const replaced = new WeakSet();
  const look = (image) => {
    if (tried.get(image) === image.src || !/\/(openers|live)\/[^/]+\.svg/.test(image.src)) return;
    tried.set(image, image.src);
    replace(image, replaced).catch((error) => console.warn(`${image.src} stays an image:`, error));
  };
  const search = (node) => {
    retry(node);
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    if (node.matches(OPENER)) look(node);
    for (const image of node.querySelectorAll(OPENER)) look(image);
  };
  const changed = (records) => {
    for (const { target, addedNodes } of records) {
      if (target.matches?.(OPENER)) look(target);
      for (const node of addedNodes) search(node);
    }
  };
  new MutationObserver(changed).observe(document.body, { childList: true, subtree: true, attributeFilter: ["src"] });
  search(document.body);
}
