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
