// What the widgets share. A widget's own file follows this one in the same module.

// ---- units: the same functions as units.py ----

function formatBytes(count) {
  if (count < 1024) return `${Math.round(count)} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (value < 1023.95) return `${value.toFixed(1)} ${unit}`;
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

// ---- page ----

/** An element. Children that are strings become text nodes: what data says stays inert. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function button(label, symbol) {
  return make("button", { type: "button", "aria-label": label, title: label }, symbol);
}

/** A small picture for a button, in the text's colour. */
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

/** A table that stays closed, and is not built, until the reader asks for it. */
function tableDetails(label, headings, rows, signal) {
  const most = 500;
  const details = make("details", {}, make("summary", {}, label));
  const build = () => {
    if (!details.open || details.querySelector("table")) return;
    const all = rows();
    const body = make("tbody");
    for (const row of all.slice(0, most)) {
      body.append(make("tr", {}, ...row.map((value) => make("td", {}, String(value)))));
    }
    const head = make("tr", {}, ...headings.map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", {}, make("thead", {}, head), body);
    details.append(make("div", { class: "shardlab-table", tabindex: "0" }, table));
    if (all.length > most) {
      details.append(make("p", {}, `The first ${most} of ${all.length} rows.`));
    }
  };
  details.addEventListener("toggle", build, { signal });
  return details;
}

// ---- controls ----

const OWN_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown", " "];

/** The notebook has meanings of its own for these keys: they stay with the control. */
function keepKeys(input, signal) {
  input.addEventListener(
    "keydown",
    (event) => {
      if (OWN_KEYS.includes(event.key)) event.stopPropagation();
    },
    { signal },
  );
}

/**
 * A labelled slider that tells its value: `format(value)` is the text beside it. A slider over
 * orders of magnitude goes over exponents: `format: (x) => String(10 ** x)`.
 * Returns { node, input, value (to read), set(value) }; `set` does not call `onInput`.
 */
function slider({ label, min, max, step = 1, value, format = String, onInput = () => {}, signal }) {
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label });
  const told = make("output", { class: "shardlab-value" });
  const node = make("label", { class: "shardlab-slider" }, make("span", {}, label), input, told);
  const tell = () => {
    told.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", told.textContent);
    node.dataset.value = input.value;
  };
  input.addEventListener("input", () => (tell(), onInput(Number(input.value))), { signal });
  keepKeys(input, signal);
  tell();
  return {
    node,
    input,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = next;
      tell();
    },
  };
}

let groups = 0; // radio buttons of one name belong together, on the whole page

/**
 * A row of labelled radio buttons, one of them chosen. `options`: [[value, text], ...]; a value is
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

// ---- canvas ----

const THEMED = ["text", "muted", "rule", "surface"];

function readTheme(node) {
  const style = getComputedStyle(node);
  const theme = { font: style.fontFamily };
  for (const role of THEMED) theme[role] = style.getPropertyValue(`--shardlab-${role}`).trim();
  return theme;
}

/**
 * A canvas that keeps its picture sharp and in the page's theme.
 * `draw(context, theme)` paints in a space of width x height and returns how many marks it drew.
 * Each full redraw is timed and noted in data-redraw-ms.
 */
function createStage({ root, width, height, label, draw, signal }) {
  const canvas = make("canvas", { role: "img", "aria-label": label });
  root.style.maxWidth = `${width + 34}px`; // and the card's padding and border
  canvas.style.aspectRatio = `${width} / ${height}`;
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
    if (canvas.width !== pixels || theme === null) {
      canvas.width = pixels;
      canvas.height = Math.round((pixels * height) / width);
    }
    theme = readTheme(root);
    redraw();
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = width / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  };

  const resized = new ResizeObserver(fit);
  resized.observe(canvas);
  const themed = new MutationObserver(fit); // JupyterLab changes theme through body's attributes
  for (const node of [document.documentElement, document.body]) {
    themed.observe(node, {
      attributeFilter: ["class", "style", "data-jp-theme-name", "data-jp-theme-light"],
    });
  }
  signal.addEventListener("abort", () => {
    resized.disconnect();
    themed.disconnect();
  });
  return { canvas, redraw, at };
}

function roundedBar(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

/** Stripes of one colour, as scene.py's patterns. */
function hatch(context, color) {
  const tile = new OffscreenCanvas(10, 10);
  const pen = tile.getContext("2d");
  pen.fillStyle = pen.strokeStyle = color;
  pen.globalAlpha = 0.18;
  pen.fillRect(0, 0, 10, 10);
  pen.globalAlpha = 0.75;
  pen.lineWidth = 2;
  pen.beginPath();
  for (const shift of [-10, 0, 10]) {
    pen.moveTo(shift - 1, 11);
    pen.lineTo(shift + 11, -1);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

/** Draws marks made by scene.py. Returns how many. */
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

function paintText(context, mark, theme) {
  const { x, y, text, size = 12, weight = 400, anchor = "start", fill = "text" } = mark;
  context.font = `${weight} ${size}px ${theme.font}`;
  context.textAlign = anchor === "middle" ? "center" : anchor;
  context.fillStyle = THEMED.includes(fill) ? theme[fill] : fill;
  context.fillText(text, x, y);
}

/** A focus ring that shows on light and dark marks alike. */
function paintFocus(context, theme, x, y, width, height) {
  context.lineWidth = 4;
  context.strokeStyle = theme.surface;
  context.strokeRect(x, y, width, height);
  context.lineWidth = 2;
  context.strokeStyle = theme.text;
  context.strokeRect(x, y, width, height);
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
