// For pictures over time: the time axis, and a view that can be panned and zoomed.

/** Round times (steps of 1, 2 or 5) below a plot that shows `from` to `to`. Returns their number. */
function drawTimeAxis(context, theme, { from, to, left, right, bottom }) {
  const step = roundStep((to - from) / 6);
  const [unit, scale] = to < 1e-3 ? ["µs", 1e6] : to < 1 ? ["ms", 1e3] : ["s", 1];
  // Enough decimals to distinguish neighboring ticks.
  const decimals = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
  const first = Math.ceil(from / step - 1e-9);
  const last = Math.floor(to / step + 1e-9);
  for (let index = first; index <= last; index += 1) {
    const x = left + ((index * step - from) / (to - from)) * (right - left);
    const text = `${(index * step * scale).toFixed(decimals)} ${unit}`;
    context.fillStyle = theme.rule;
    context.fillRect(x - 0.5, bottom, 1, 4);
    paintText(context, { x, y: bottom + 16, text, size: 11, anchor: "middle", fill: "muted" }, theme);
  }
  return last - first + 1;
}

/**
 * The visible time span, changed by dragging, the wheel, buttons and keys; createStage's draw
 * reads it. `whole()`: the first and the last time, in seconds. `focus()`: the time that keys zoom around,
 * or undefined. `point(at)`: called with the pointer's position, and with null once it has left.
 * `keys()`: the widget's own keys, as for handleKeys. `moved()`, optional: called when the span has changed. The buttons are added to `head`.
 * Returns { from, to (to read), setSpan(from, to), toX, toTime }; call setSpan before the first
 * drawing.
 */
function timeView({ root, head, plot, stage, box, whole, focus, point, keys, moved, signal }) {
  const zoomIn = button("Zoom in (+)", icon("M6 2h2v4h4v2H8v4H6V8H2V6h4z"));
  const zoomOut = button("Zoom out (−)", icon("M2 6h10v2H2z"));
  const fitAll = button("Show everything (0)", icon("M1 1h4v2H3v2H1zM9 1h4v4h-2V3H9zM1 9h2v2h2v2H1zM11 9h2v4H9v-2h2z"));
  head.append(zoomIn, zoomOut, fitAll);

  const view = { from: null, to: null, setSpan, toX, toTime };

  function toX(time) {
    return box.left + ((time - view.from) / (view.to - view.from)) * (box.right - box.left);
  }

  function toTime(x) {
    return view.from + ((x - box.left) / (box.right - box.left)) * (view.to - view.from);
  }

  function setSpan(from, to) {
    const [first, last] = whole();
    const maxWidth = last - first;
    const width = clamp(to - from, Math.min(1e-6, maxWidth), maxWidth);
    view.from = clamp(from, first, last - width);
    view.to = view.from + width;
    root.dataset.viewStartS = view.from;
    root.dataset.viewEndS = view.to;
    zoomOut.disabled = fitAll.disabled = width >= maxWidth;
    moved?.();
    stage.redraw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    setSpan(around - (around - view.from) / factor, around + (view.to - around) / factor);
  }

  function pan(share) {
    const shift = share * (view.to - view.from);
    setSpan(view.from + shift, view.to + shift);
  }

  const everything = () => setSpan(...whole());
  let drag = null;
  // Not passive, so that the wheel event can be kept from the page.
  const on = (name, act) => plot.addEventListener(name, act, { signal, passive: false });
  on("pointerdown", (event) => {
    drag = { x: stage.at(event).x, from: view.from, to: view.to };
    stage.canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    const at = stage.at(event);
    if (!drag) return point(at);
    const shift = ((drag.x - at.x) * (drag.to - drag.from)) / (box.right - box.left);
    setSpan(drag.from + shift, drag.to + shift);
  });
  on("pointerup", () => (drag = null));
  on("pointercancel", () => (drag = null));
  on("pointerleave", () => point(null));
  on("wheel", (event) => {
    // Let the page scroll, unless the reader has clicked into the plot or holds Ctrl.
    if (!plot.contains(document.activeElement) && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
    else zoom(Math.exp(-event.deltaY / 400), toTime(stage.at(event).x));
  });
  const moves = () => ({
    ...keys(),
    "+": () => zoom(2, focus()),
    "=": () => zoom(2, focus()),
    "-": () => zoom(0.5, focus()),
    0: everything,
    "Shift+ArrowLeft": () => pan(-0.25),
    "Shift+ArrowRight": () => pan(0.25),
  });
  handleKeys(plot, moves, signal);
  zoomIn.addEventListener("click", () => zoom(2), { signal });
  zoomOut.addEventListener("click", () => zoom(0.5), { signal });
  fitAll.addEventListener("click", everything, { signal });
  return view;
}
