// The timeline: rows, lanes and arrows come from timeline.py; here is the view in time, which
// zooms and moves, and pointing at calls.

function render({ model, el }) {
  const scene = model.get("scene");
  const stop = new AbortController();
  const { signal } = stop;
  const { plot: box, world_size: n } = scene;
  const calls = scene.calls.map(
    ([rank, lane, op, bytes, peers, start, end, source, code], index) => ({
      rank, lane, op, bytes, peers, start, end, source, code, index,
    }),
  );
  // Drawn op by op: a change of colour for each of 16,000 bars would take longer than the bars.
  const byOp = calls.toSorted((a, b) => a.op.localeCompare(b.op) || a.index - b.index);
  const looks = new Map(scene.ops.map(([op, color, ink]) => [op, { color, ink }]));
  const whole = { from: scene.start_s, to: scene.end_s };
  let view = { ...whole };
  let selected = null; // a call

  const root = make("div", { class: "shardlab-widget" });
  root.dataset.widget = "timeline";
  root.dataset.worldSize = n;
  root.dataset.calls = calls.length;
  root.dataset.pending = calls.filter((call) => call.end === null).length;
  root.dataset.waits = scene.waits.map(([waiter, awaited]) => `${waiter}>${awaited}`).join(" ");

  const head = make("div", { class: "shardlab-head" });
  const zoomIn = button("Zoom in (+)", icon("M6 2h2v4h4v2H8v4H6V8H2V6h4z"));
  const zoomOut = button("Zoom out (−)", icon("M2 6h10v2H2z"));
  const fitAll = button("Show everything (0)", icon("M1 1h4v2H3v2H1zM9 1h4v4h-2V3H9zM1 9h2v2h2v2H1zM11 9h2v4H9v-2h2z"));
  head.append(
    make("span", { class: "shardlab-title" }, "Calls by rank"),
    make("span", { class: "shardlab-sub" }, `${calls.length} calls`),
    zoomIn, zoomOut, fitAll,
  );
  root.append(head);
  if (scene.headline) root.append(make("p", { class: "shardlab-error" }, scene.headline));
  if (!calls.length) {
    root.append(make("p", { class: "shardlab-note" }, "This run recorded no calls of torch.distributed."));
  }

  const stage = createStage({
    root, width: scene.width, height: scene.height, label: summary(), draw, signal,
  });
  const plot = make("div", {
    class: "shardlab-plot",
    tabindex: "0",
    role: "group",
    "aria-label":
      "Timeline. Arrow keys move from call to call, plus and minus zoom, shift and arrows pan, 0 shows all.",
  });
  plot.append(stage.canvas);
  const detail = make("p", {
    class: "shardlab-detail",
    "aria-live": "polite",
    "data-hint": "Point at a call for its details. Click, then scroll to zoom and drag to pan.",
  });
  const table = tableDetails(
    "As a table",
    ["rank", "call", "with", "bytes", "start", "end", "line", "code"],
    () => calls.map((call) => [
      call.rank, call.op, whom(call), call.bytes, formatSeconds(call.start),
      call.end === null ? "never" : formatSeconds(call.end), call.source, call.code,
    ]),
    signal,
  );
  root.append(plot, detail, table);

  function summary() {
    const waits = scene.waits.slice(0, 16).map(([a, b]) => `rank ${a} waits for rank ${b}`);
    return [`Timeline of ${calls.length} calls on ${n} ranks`, ...waits].join(", ") + ".";
  }

  function whom({ op, peers }) {
    if (Array.isArray(peers)) return peers.length === n ? "all ranks" : `ranks ${peers.join(", ")}`;
    if (peers === null) return "any rank";
    return `${op === "send" ? "→" : "←"} rank ${peers}`;
  }

  function describe(call) {
    const time =
      call.end === null
        ? `began at ${formatSeconds(call.start)} and never ended`
        : `${formatSeconds(call.start)} – ${formatSeconds(call.end)} (${formatSeconds(call.end - call.start)})`;
    const parts = [`rank ${call.rank}`, `${call.op} ${whom(call)}`, exactBytes(call.bytes), time];
    const where = [call.source, call.code].filter(Boolean).join(": ");
    return [...parts, where].filter(Boolean).join(" · ");
  }

  // ---- the view in time ----

  const toX = (time) =>
    box.left + ((time - view.from) / (view.to - view.from)) * (box.right - box.left);
  const toTime = (x) =>
    view.from + ((x - box.left) / (box.right - box.left)) * (view.to - view.from);

  function look(from, to) {
    const most = whole.to - whole.from;
    const width = clamp(to - from, Math.min(1e-6, most), most);
    const start = clamp(from, whole.from, whole.to - width);
    view = { from: start, to: start + width };
    root.dataset.viewStartS = view.from;
    root.dataset.viewEndS = view.to;
    zoomOut.disabled = fitAll.disabled = width >= most;
    stage.redraw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    look(around - (around - view.from) / factor, around + (view.to - around) / factor);
  }

  function pan(share) {
    const shift = share * (view.to - view.from);
    look(view.from + shift, view.to + shift);
  }

  function select(call) {
    selected = call;
    if (call) {
      detail.textContent = describe(call);
      root.dataset.selected = call.index;
      root.dataset.selectedOp = call.op;
    } else {
      detail.textContent = "";
      delete root.dataset.selected;
      delete root.dataset.selectedOp;
    }
    stage.redraw();
  }

  /** By keyboard a call may lie outside the view: bring it in. */
  function visit(call) {
    if (!call) return;
    const end = call.end ?? whole.to;
    if (call.start < view.from || call.start > view.to) {
      const width = view.to - view.from;
      const middle = (call.start + Math.min(end, call.start + width)) / 2;
      look(middle - width / 2, middle + width / 2);
    }
    select(call);
  }

  // ---- drawing ----

  const margin = scene.row >= 16 ? 3 : 1;
  const laneHeight = (scene.row - 2 * margin) / scene.lanes;
  const barHeight = laneHeight - (laneHeight > 5 ? 1 : 0);

  function boxOf(call) {
    const left = toX(call.start);
    const right = call.end === null ? box.right : toX(call.end);
    const y = box.top + call.rank * scene.row + margin + call.lane * laneHeight;
    return { x: left, y, width: Math.max(right - left, 0.75), height: barHeight };
  }

  function draw(context, theme) {
    context.save();
    context.beginPath();
    context.rect(box.left, 0, box.right - box.left, box.bottom);
    context.clip();
    drawBlocks(context, theme);
    context.restore();
    let drawn = paint(context, scene.ground, theme);
    drawn += drawTimeAxis(context, theme, { ...box, ...view });
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.clip();
    drawn += drawCalls(context, theme);
    if (selected) {
      const { x, y, width, height } = boxOf(selected);
      paintFocus(context, theme, x, y, width, height);
    }
    context.restore();
    return drawn + paint(context, scene.arrows, theme);
  }

  function drawCalls(context, theme) {
    context.font = `10px ${theme.font}`;
    context.textAlign = "start";
    const stripes = hatch(context, "#D55E00");
    let color = null;
    let drawn = 0;
    for (const call of byOp) {
      if (call.start > view.to || (call.end !== null && call.end < view.from)) continue;
      const { x, y, width, height } = boxOf(call);
      drawn += 1;
      const { color: own, ink } = looks.get(call.op);
      const fill = call.end === null ? stripes : own;
      if (fill !== color) context.fillStyle = color = fill;
      if (width > 6 && height > 6) {
        roundedBar(context, x, y, width, height, 2);
        context.fill();
      } else context.fillRect(x, y, width, height);
      if (height < 11 || width < 30) continue;
      const begin = Math.max(x, box.left) + 6;
      const room = Math.min(x + width, box.right) - begin - 4;
      const label = call.end === null ? pendingLabel(call) : call.op;
      const size = context.measureText(label).width;
      if (size > room) continue;
      if (call.end === null) {
        // A quiet ground, or the stripes would run through the words.
        context.globalAlpha = 0.85;
        context.fillStyle = theme.surface;
        context.fillRect(begin - 3, y + 1, size + 6, height - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = call.end === null ? theme.text : ink;
      context.fillText(label, begin, y + height / 2 + 3.5);
      color = null;
    }
    return drawn;
  }

  function pendingLabel(call) {
    const { op, peers } = call;
    const many = Array.isArray(peers) ? `of ${peers.length} ranks` : null;
    const one = peers === null ? "from any rank" : `${op === "send" ? "to" : "from"} rank ${peers}`;
    return `${op} ${many ?? one}, ${call.source}`;
  }

  function drawBlocks(context, theme) {
    const spans = new Map();
    for (const [rank, label, start, end] of scene.blocks) {
      const [left, right] = [toX(start), toX(end)];
      context.fillStyle = theme.text;
      context.globalAlpha = 0.06;
      context.fillRect(left, box.top + rank * scene.row, right - left, scene.row);
      context.globalAlpha = 1;
      const [first, last] = spans.get(label) ?? [left, right];
      spans.set(label, [Math.min(first, left), Math.max(last, right)]);
    }
    let free = 0;
    for (const [label, [left, right]] of [...spans].sort((a, b) => a[1][0] - b[1][0])) {
      context.globalAlpha = 0.5; // ranks drift, so blocks may overlap
      context.fillStyle = theme.muted;
      context.fillRect(left, box.top - 6, Math.max(right - left - 2, 1), 3);
      context.globalAlpha = 1;
      const x = Math.max(left, box.left);
      if (right < box.left || x < free) continue;
      paintText(context, { x, y: box.top - 10, text: label, size: 11, fill: "muted" }, theme);
      free = x + context.measureText(label).width + 8;
    }
  }

  // ---- mouse and keyboard ----

  function callAt({ x, y }) {
    if (x < box.left || x > box.right) return null;
    const near = 2; // thin bars are still to be hit
    return (
      calls.findLast((call) => {
        const bar = boxOf(call);
        return (
          y >= bar.y && y <= bar.y + bar.height && x >= bar.x - near && x <= bar.x + bar.width + near
        );
      }) ?? null
    );
  }

  let drag = null;
  plot.addEventListener(
    "pointerdown",
    (event) => {
      drag = { x: stage.at(event).x, ...view };
      stage.canvas.setPointerCapture(event.pointerId);
    },
    { signal },
  );
  plot.addEventListener(
    "pointermove",
    (event) => {
      const at = stage.at(event);
      if (!drag) return select(callAt(at));
      const perPixel = (drag.to - drag.from) / (box.right - box.left);
      const shift = (drag.x - at.x) * perPixel;
      look(drag.from + shift, drag.to + shift);
    },
    { signal },
  );
  for (const end of ["pointerup", "pointercancel"]) {
    plot.addEventListener(end, () => (drag = null), { signal });
  }
  plot.addEventListener("pointerleave", () => select(null), { signal });
  plot.addEventListener(
    "wheel",
    (event) => {
      // The page scrolls on, unless the reader has clicked into the plot or holds Ctrl.
      if (!plot.contains(document.activeElement) && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 800);
      else zoom(Math.exp(-event.deltaY / 400), toTime(stage.at(event).x));
    },
    { signal, passive: false },
  );
  zoomIn.addEventListener("click", () => zoom(2), { signal });
  zoomOut.addEventListener("click", () => zoom(0.5), { signal });
  fitAll.addEventListener("click", () => look(whole.from, whole.to), { signal });

  plot.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const rank = selected?.rank ?? 0;
      const mine = calls.filter((call) => call.rank === rank);
      const place = selected ? mine.indexOf(selected) : -1;
      const onRank = (other) => nearest(calls.filter((call) => call.rank === other));
      const moves = {
        ArrowLeft: () => visit(mine[Math.max(place - 1, 0)]),
        ArrowRight: () => visit(mine[Math.min(place + 1, mine.length - 1)]),
        ArrowUp: () => visit(onRank(rank - 1)),
        ArrowDown: () => visit(onRank(selected ? rank + 1 : 0)),
        Home: () => visit(mine[0]),
        End: () => visit(mine.at(-1)),
        Escape: () => select(null),
        "+": () => zoom(2, selected?.start),
        "=": () => zoom(2, selected?.start),
        "-": () => zoom(0.5, selected?.start),
        0: () => look(whole.from, whole.to),
      };
      if (event.shiftKey && event.key === "ArrowLeft") pan(-0.25);
      else if (event.shiftKey && event.key === "ArrowRight") pan(0.25);
      else if (moves[event.key]) moves[event.key]();
      else return;
      event.preventDefault();
      event.stopPropagation(); // or the notebook would move to another cell
    },
    { signal },
  );

  /** The call that began closest to the selected one. */
  function nearest(others) {
    const at = selected?.start ?? view.from;
    const gap = (call) => Math.abs(call.start - at);
    return others.reduce((best, call) => (best && gap(best) <= gap(call) ? best : call), null);
  }

  look(whole.from, whole.to);
  el.append(root);
  return () => stop.abort();
}

export default { render };
