// The timeline: rows, lanes and arrows come from timeline.py; this file selects calls.

function build(model, signal) {
  const scene = model.get("scene");
  const { plot: box, world_size: n } = scene;
  const calls = callsOf(scene);
  // Drawn op by op: changing the color for each of 16,000 bars would take longer than the bars.
  const byOp = calls.toSorted((a, b) => a.op.localeCompare(b.op) || a.index - b.index);
  let selected = null; // a call

  const { root, head, sub, plot, stage, refresh, mark } = frame({
    name: "timeline", title: "Calls by rank", scene, signal,
    label:
      "Timeline. Arrow keys move from call to call, plus and minus zoom, Shift and arrows pan, 0 shows all.",
    hint: "Hover over a call for its details. Click, then scroll to zoom and drag to pan.",
    headings: () => ["rank", "call", "with", "bytes", "start", "alone for", "end", "line", "code"],
    rows: () => calls.map((call) => callRow(call, n)),
    draw: (context, theme) => drawTimeline(context, theme, { scene, view, calls, byOp, selected }),
  });
  Object.assign(root.dataset, {
    worldSize: n, calls: calls.length, pending: calls.filter((call) => call.end === null).length,
    waits: scene.waits.map(([waiter, awaited]) => `${waiter}>${awaited}`).join(" "),
  });
  sub.textContent = `${calls.length} calls`;
  refresh(summarizeCalls(scene, calls));
  if (scene.headline) plot.before(make("p", { class: "shardlab-error" }, scene.headline));
  if (!calls.length) {
    plot.before(make("p", { class: "shardlab-note" }, "This run recorded no torch.distributed calls."));
  }

  const whole = [scene.start_s, scene.end_s];
  const view = timeView({
    root, head, plot, stage, box, keys, signal,
    whole: () => whole,
    focus: () => selected?.start,
    point: (at) => select(at && callAt(at)),
  });

  function select(call) {
    selected = call;
    if (!call) return mark("");
    const arrows = arrowsOf(call, calls).map(([from, to]) => `${from.index}>${to.index}`);
    mark(describeCall(call, scene), { selected: call.index, selectedOp: call.op, selectedArrows: arrows.join(" ") });
  }

  /** Selects a call, and moves the view to it if necessary. */
  function visit(call) {
    if (!call) return;
    const end = call.end ?? scene.end_s;
    if (call.start < view.from || call.start > view.to) {
      const width = view.to - view.from;
      const middle = (call.start + Math.min(end, call.start + width)) / 2;
      view.setSpan(middle - width / 2, middle + width / 2);
    }
    select(call);
  }

  function callAt({ x, y }) {
    if (x < box.left || x > box.right) return null;
    const near = 2; // so that thin bars can be hit
    const isHit = (bar) =>
      y >= bar.y && y <= bar.y + bar.height && x >= bar.x - near && x <= bar.x + bar.width + near;
    return calls.findLast((call) => isHit(barOf(scene, view, call))) ?? null;
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

  view.setSpan(...whole);
  return root;
}

export default widget(build);
