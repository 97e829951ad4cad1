// Draws the visible part of the timeline.

/** A call's bar: { x, y, width, height }. */
function barOf(scene, view, call) {
  const { plot: box, row, lanes, margin, state } = scene;
  const lane = (row - 2 * margin - state) / lanes;
  const left = view.toX(call.start);
  const right = call.end === null ? box.right : view.toX(call.end);
  const y = box.top + call.rank * row + margin + state + call.lane * lane;
  return { x: left, y, width: Math.max(right - left, 0.75), height: lane - (lane > 5 ? 1 : 0) };
}

/** `byOp`: the calls, those of the same op one after another. `states`: the lanes of states, or null. */
function drawTimeline(context, theme, { scene, view, calls, byOp, states, selected, isPathShown }) {
  const box = scene.plot;
  clipped(context, { ...box, top: 0 }, () => drawBlocks(context, theme, scene, view));
  let drawn = paint(context, scene.background, theme);
  drawn += drawTimeAxis(context, theme, { ...box, ...view });
  drawn += clipped(context, box, () => {
    let bars = drawCalls(context, theme, scene, view, byOp);
    if (states) bars += drawStates(context, scene, view, states);
    if (isPathShown) bars += drawPath(context, theme, scene, view);
    if (!selected) return bars;
    const { x, y, width, height } = (selected.isState ? stateBox : barOf)(scene, view, selected);
    paintFocus(context, theme, x, y, width, height);
    if (selected.isState) return bars;
    for (const arrow of arrowsOf(selected, calls)) drawArrow(context, theme, scene, view, arrow);
    return bars;
  });
  return drawn + paint(context, scene.arrows, theme);
}

function drawArrow(context, theme, scene, view, [from, to, start, end]) {
  const [a, b] = [from, to].map((call) => barOf(scene, view, call));
  const down = to.rank > from.rank;
  const [x1, x2] = [view.toX(start), view.toX(end)];
  const [y1, y2] = [a.y + (down ? a.height : 0), b.y + (down ? 0 : b.height)];
  paintArrow(context, theme, x1, y1, x2, y2);
}

function paintArrow(context, theme, x1, y1, x2, y2) {
  const angle = Math.atan2(y2 - y1, x2 - x1);
  const side = (turn) => `${x2 - 9 * Math.cos(angle + turn)} ${y2 - 9 * Math.sin(angle + turn)}`;
  const line = { kind: "path", d: `M${x1} ${y1}L${x2} ${y2}` };
  paint(context, [
    { ...line, stroke: "surface", stroke_width: 4 },
    { ...line, stroke: "text", stroke_width: 2 },
    { kind: "path", d: `M${x2} ${y2}L${side(0.4)}L${side(-0.4)}Z`, fill: "text" },
  ], theme);
}

function drawCalls(context, theme, scene, view, byOp) {
  const box = scene.plot;
  const looks = new Map(scene.ops.map(([op, color, ink]) => [op, { color, ink }]));
  context.font = fontOf(theme, 11);
  context.textAlign = "start";
  const stripes = hatch(context, scene.error_color);
  let color = null;
  let drawn = 0;
  for (const call of byOp) {
    const isPending = call.end === null;
    if (call.start > view.to || (!isPending && call.end < view.from)) continue;
    const { x, y, width, height } = barOf(scene, view, call);
    drawn += 1;
    const { color: own, ink } = looks.get(call.op);
    const fill = isPending ? stripes : own;
    if (fill !== color) context.fillStyle = color = fill;
    const waits = call.waited === 0 ? 0 : clamp(view.toX(call.moved) - x, 0, width);
    const drawPart = (left, part) => {
      if (width > 6 && height > 6) {
        roundedBar(context, left, y, part, height, 2);
        context.fill();
      } else context.fillRect(left, y, part, height);
    };
    if (waits > 0) {
      context.globalAlpha = 0.35; // WAITING in timeline_layout.py
      drawPart(x, waits);
      context.globalAlpha = 1;
    }
    if (width > waits) drawPart(x + waits, width - waits);
    if (height < 11 || width < 30) continue;
    const onWait = waits > width - waits;
    const begin = Math.max(onWait ? x : x + waits, box.left) + 6;
    const room = Math.min(onWait ? x + waits : x + width, box.right) - begin - 4;
    const label = isPending ? pendingLabel(call) : call.op;
    const size = context.measureText(label).width;
    if (size > room) continue;
    if (isPending) {
      // A plain backdrop keeps the stripes out of the text.
      context.globalAlpha = 0.85;
      context.fillStyle = theme.surface;
      context.fillRect(begin - 3, y + 1, size + 6, height - 2);
      context.globalAlpha = 1;
    }
    context.fillStyle = isPending || onWait ? theme.text : ink;
    context.fillText(label, begin, y + height / 2 + 3.5);
    color = null;
  }
  return drawn;
}

function drawBlocks(context, theme, { plot: box, row, blocks }, view) {
  const spans = new Map();
  for (const [rank, label, start, end, pass] of blocks) {
    const [left, right] = [view.toX(start), view.toX(end)];
    context.fillStyle = theme.text;
    context.globalAlpha = 0.1;
    context.fillRect(left, box.top + rank * row, right - left, row);
    context.globalAlpha = 1;
    const which = `${pass} ${label}`;
    const span = spans.get(which) ?? { label, left, right };
    spans.set(which, { label, left: Math.min(span.left, left), right: Math.max(span.right, right) });
  }
  let free = 0;
  const seen = new Set(); // of each label the first pass in view is named, and others that are as wide as the name
  for (const { label, left, right } of [...spans.values()].sort((a, b) => a.left - b.left)) {
    context.globalAlpha = 0.5; // ranks drift, so blocks may overlap
    context.fillStyle = theme.muted;
    context.fillRect(left, box.top - 6, Math.max(right - left - 2, 1), 3);
    context.globalAlpha = 1;
    const x = Math.max(left, box.left);
    if (right < box.left) continue;
    const isFirst = !seen.has(label);
    seen.add(label);
    context.font = fontOf(theme, 11);
    const { width } = context.measureText(label);
    if (x < free || !(isFirst || right - x >= width)) continue;
    paintText(context, { x, y: box.top - 10, text: label, size: 11, fill: "muted" }, theme);
    free = x + width + 8;
  }
}
