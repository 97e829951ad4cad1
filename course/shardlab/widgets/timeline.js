// The timeline: rows, lanes and arrows come from timeline.py; this file draws the visible part
// and selects calls.

function build(model, signal) {
  const scene = model.get("scene");
  const { plot: box, world_size: n } = scene;
  const calls = scene.calls.map(
    ([rank, lane, op, bytes, peers, start, end, source, code, moved, other], index) => ({
      rank, lane, op, bytes, peers, start, end, source, code, moved, other, index,
    }),
  );
  // Drawn op by op: changing the color for each of 16,000 bars would take longer than the bars.
  const byOp = calls.toSorted((a, b) => a.op.localeCompare(b.op) || a.index - b.index);
  const looks = new Map(scene.ops.map(([op, color, ink]) => [op, { color, ink }]));
  let selected = null; // a call

  const { root, head, plot, detail } = card({
    name: "timeline", title: "Calls by rank",
    label:
      "Timeline. Arrow keys move from call to call, plus and minus zoom, Shift and arrows pan, 0 shows all.",
    hint: "Hover over a call for its details. Click, then scroll to zoom and drag to pan.",
  });
  root.dataset.worldSize = n;
  root.dataset.calls = calls.length;
  root.dataset.pending = calls.filter((call) => call.end === null).length;
  root.dataset.waits = scene.waits.map(([waiter, awaited]) => `${waiter}>${awaited}`).join(" ");

  head.append(make("span", { class: "shardlab-sub" }, `${calls.length} calls`));
  root.append(head);
  if (scene.headline) root.append(make("p", { class: "shardlab-error" }, scene.headline));
  if (!calls.length) {
    root.append(make("p", { class: "shardlab-note" }, "This run recorded no torch.distributed calls."));
  }

  const stage = createStage({
    root, plot, width: scene.width, height: scene.height, label: summary(), draw, signal,
  });
  const table = tableDetails(
    () => ["rank", "call", "with", "bytes", "start", "alone for", "end", "line", "code"],
    () => calls.map((call) => [
      call.rank, call.op, peersText(call), call.bytes, formatSeconds(call.start), formatSeconds(waited(call)),
      call.end === null ? "never" : formatSeconds(call.end), call.source, call.code,
    ]),
    signal,
  );
  root.append(plot, detail, table.node);

  const whole = [scene.start_s, scene.end_s];
  const view = timeView({
    root, head, plot, stage, box, keys, signal,
    whole: () => whole,
    focus: () => selected?.start,
    point: (at) => select(at && callAt(at)),
  });
  const { setSpan, toX } = view;

  function summary() {
    const waits = scene.waits.slice(0, 16).map(([a, b]) => `rank ${a} waits for rank ${b}`);
    const ranks = Array.from({ length: Math.min(n, 8) }, (_, rank) => `rank ${rank}: ${callsOf(rank)}`);
    return [`Timeline of ${calls.length} calls on ${n} ranks`, ...ranks, ...waits].join(". ") + ".";
  }

  /** The first calls of a rank in words, with their times. */
  function callsOf(rank) {
    const mine = calls.filter((call) => call.rank === rank);
    const words = mine.slice(0, 4).map(({ op, start, end }) =>
      end === null ? `${op}, which never ended` : `${op} ${formatSeconds(end - start)}`);
    if (mine.length > 4) words.push(`${mine.length - 4} more calls`);
    return words.join(", ") || "no calls";
  }

  function peersText({ op, peers }) {
    if (Array.isArray(peers)) return peers.length === n ? "all ranks" : `ranks ${peers.join(", ")}`;
    if (peers === null) return "any rank";
    return `${op === "send" ? "→" : "←"} rank ${peers}`;
  }

  function describe(call) {
    const time =
      call.end === null
        ? `started at ${formatSeconds(call.start)} and never ended`
        : `${formatSeconds(call.start)} – ${formatSeconds(call.end)} (${formatSeconds(call.end - call.start)})`;
    const parts = [`rank ${call.rank}`, `${call.op} ${peersText(call)}`, exactBytes(call.bytes), time];
    const where = [call.source, call.code].filter(Boolean).join(": ");
    return [...parts, waitText(call), where].filter(Boolean).join(" · ");
  }

  const waited = (call) => (call.moved === null ? 0 : Math.max(call.moved - call.start, 0));

  function waitText(call) {
    if (call.other === null || waited(call) === 0) return "";
    return `rank ${calls[call.other].rank} began ${formatSeconds(waited(call))} later`;
  }

  // ---- the selection ----

  function select(call) {
    selected = call;
    if (call) {
      detail.textContent = describe(call);
      root.dataset.selected = call.index;
      root.dataset.selectedOp = call.op;
      root.dataset.selectedArrows = arrowsOf(call).map(([from, to]) => `${from.index}>${to.index}`).join(" ");
    } else {
      detail.textContent = "";
      delete root.dataset.selected;
      delete root.dataset.selectedOp;
      delete root.dataset.selectedArrows;
    }
    stage.redraw();
  }

  /** Selects a call, and moves the view to it if necessary. */
  function visit(call) {
    if (!call) return;
    const end = call.end ?? scene.end_s;
    if (call.start < view.from || call.start > view.to) {
      const width = view.to - view.from;
      const middle = (call.start + Math.min(end, call.start + width)) / 2;
      setSpan(middle - width / 2, middle + width / 2);
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
    let drawn = paint(context, scene.background, theme);
    drawn += drawTimeAxis(context, theme, { ...box, ...view });
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.clip();
    drawn += drawCalls(context, theme);
    if (selected) {
      const { x, y, width, height } = boxOf(selected);
      paintFocus(context, theme, x, y, width, height);
      drawArrows(context, theme);
    }
    context.restore();
    return drawn + paint(context, scene.arrows, theme);
  }

  /** [from, to, start, end] of each arrow: a message, or the rank that a collective waited for. */
  function arrowsOf(call) {
    const other = call.other === null ? null : calls[call.other];
    if (!other) return [];
    if (!Array.isArray(call.peers)) {
      const [from, to] = call.op === "send" ? [call, other] : [other, call];
      if (to.end === null) return [];
      const left = from.end === null ? from.start : Math.min(Math.max(from.start, to.start), from.end);
      return [[from, to, left, to.end]];
    }
    const waiting = other === call ? calls.filter((each) => each.other === call.index && each !== call) : [call];
    return waiting.map((each) => [other, each, other.start, other.start]);
  }

  function drawArrows(context, theme) {
    for (const [from, to, start, end] of arrowsOf(selected)) {
      const [a, b] = [boxOf(from), boxOf(to)];
      const down = to.rank > from.rank;
      const [x1, x2] = [toX(start), toX(end)];
      const [y1, y2] = [a.y + (down ? a.height : 0), b.y + (down ? 0 : b.height)];
      const angle = Math.atan2(y2 - y1, x2 - x1);
      const side = (turn) => `${x2 - 9 * Math.cos(angle + turn)} ${y2 - 9 * Math.sin(angle + turn)}`;
      for (const [stroke, stroke_width] of [["surface", 4], ["text", 2]]) {
        paint(context, [{ kind: "path", d: `M${x1} ${y1}L${x2} ${y2}`, stroke, stroke_width }], theme);
      }
      paint(context, [{ kind: "path", d: `M${x2} ${y2}L${side(0.4)}L${side(-0.4)}Z`, fill: "text" }], theme);
    }
  }

  function drawCalls(context, theme) {
    context.font = fontOf(theme, 11);
    context.textAlign = "start";
    const stripes = hatch(context, scene.error_color);
    let color = null;
    let drawn = 0;
    for (const call of byOp) {
      if (call.start > view.to || (call.end !== null && call.end < view.from)) continue;
      const { x, y, width, height } = boxOf(call);
      drawn += 1;
      const { color: own, ink } = looks.get(call.op);
      const fill = call.end === null ? stripes : own;
      if (fill !== color) context.fillStyle = color = fill;
      const waits = waited(call) === 0 ? 0 : clamp(toX(call.moved) - x, 0, width);
      const drawPart = (left, part) => {
        if (width > 6 && height > 6) {
          roundedBar(context, left, y, part, height, 2);
          context.fill();
        } else context.fillRect(left, y, part, height);
      };
      if (waits > 0) {
        context.globalAlpha = 0.35; // WAITING in timeline.py
        drawPart(x, waits);
        context.globalAlpha = 1;
      }
      if (width > waits) drawPart(x + waits, width - waits);
      if (height < 11 || width < 30) continue;
      const onWait = waits > width - waits;
      const begin = Math.max(onWait ? x : x + waits, box.left) + 6;
      const room = Math.min(onWait ? x + waits : x + width, box.right) - begin - 4;
      const label = call.end === null ? pendingLabel(call) : call.op;
      const size = context.measureText(label).width;
      if (size > room) continue;
      if (call.end === null) {
        // A plain backdrop keeps the stripes out of the text.
        context.globalAlpha = 0.85;
        context.fillStyle = theme.surface;
        context.fillRect(begin - 3, y + 1, size + 6, height - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = call.end === null || onWait ? theme.text : ink;
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
    const near = 2; // so that thin bars can be hit
    return (
      calls.findLast((call) => {
        const bar = boxOf(call);
        return (
          y >= bar.y && y <= bar.y + bar.height && x >= bar.x - near && x <= bar.x + bar.width + near
        );
      }) ?? null
    );
  }

  function keys() {
    const rank = selected?.rank ?? 0;
    const rankCalls = calls.filter((call) => call.rank === rank);
    const place = selected ? rankCalls.indexOf(selected) : -1;
    const onRank = (other) => nearest(calls.filter((call) => call.rank === other));
    return {
      ArrowLeft: () => visit(rankCalls[Math.max(place - 1, 0)]),
      ArrowRight: () => visit(rankCalls[Math.min(place + 1, rankCalls.length - 1)]),
      ArrowUp: () => visit(onRank(rank - 1)),
      ArrowDown: () => visit(onRank(selected ? rank + 1 : 0)),
      Home: () => visit(rankCalls[0]),
      End: () => visit(rankCalls.at(-1)),
      Escape: () => select(null),
    };
  }

  /** The call whose start is closest to that of the selected one. */
  function nearest(others) {
    const at = selected?.start ?? view.from;
    const gap = (call) => Math.abs(call.start - at);
    return others.reduce((best, call) => (best && gap(best) <= gap(call) ? best : call), null);
  }

  setSpan(...whole);
  return root;
}

export default widget(build);
