// The timeline: rows, lanes and arrows come from timeline.py; this file selects calls and states.

function build(model, signal) {
  const scene = model.get("scene");
  const { plot: box, world_size: n } = scene;
  const calls = callsOf(scene);
  // Drawn op by op: changing the color for each of 16,000 bars would take longer than the bars.
  const byOp = calls.toSorted((a, b) => a.op.localeCompare(b.op) || a.index - b.index);
  const states = scene.states && unpackStates(scene.states);
  let selected = null; // a call, or a state of stateOf
  let isPathShown = false;

  const { root, head, sub, plot, stage, refresh, mark } = frame({
    name: "timeline", title: "Calls by rank", scene, signal,
    label:
      "Timeline. Arrow keys move from call to call, plus and minus zoom, Shift and arrows pan, 0 shows all." +
      (states ? " S moves to the lane of states and back, C shows the critical path." : ""),
    hint: `Hover over a call${states ? " or a state" : ""} for its details. Click, then scroll to zoom and drag to pan.`,
    headings: () => ["rank", "call", "with", "bytes", "start", "alone for", "end", "line", "code"],
    rows: () => calls.map((call) => callRow(call, n)),
    draw: (context, theme) => drawTimeline(context, theme, { scene, view, calls, byOp, states, selected, isPathShown }),
  });
  Object.assign(root.dataset, {
    worldSize: n, calls: calls.length, pending: calls.filter((call) => call.end === null).length,
    waits: scene.waits.map(([waiter, awaited]) => `${waiter}>${awaited}`).join(" "),
  });
  sub.textContent = [`${calls.length} calls`, scene.states?.source, scene.label && `shown: ${scene.label}`].filter(Boolean).join(" · ");
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
    point: (at) => select(at && (callAt(at) ?? stateAt(at))),
    moved: () => isPathShown && !selected && select(null),
  });
  const pathToggle = states && pathButton(showPath, signal);
  if (states) head.append(pathToggle.node);

  function showPath(isShown) {
    isPathShown = isShown;
    root.dataset.path = isShown ? "shown" : "hidden";
    select(null);
  }

  function select(one) {
    selected = one;
    if (!one) return mark(isPathShown ? pathWords(scene.states, view) : "");
    return one.isState ? markState(one) : markCall(one);
  }

  function markState(state) {
    mark(describeState(scene, state), { selectedState: state.name, selectedRank: state.rank, selectedIndex: state.index });
  }

  function markCall(call) {
    const arrows = arrowsOf(call, calls).map(([from, to]) => `${from.index}>${to.index}`);
    mark(describeCall(call, scene), { selected: call.index, selectedOp: call.op, selectedArrows: arrows.join(" ") });
  }

  /** Selects a call or a state, and moves the view to it if necessary. */
  function visit(one) {
    if (!one) return;
    const end = one.end ?? scene.end_s;
    if (one.start < view.from || one.start > view.to) {
      const width = view.to - view.from;
      const middle = (one.start + Math.min(end, one.start + width)) / 2;
      view.setSpan(middle - width / 2, middle + width / 2);
    }
    select(one);
  }

  function callAt({ x, y }) {
    if (x < box.left || x > box.right) return null;
    const near = 2; // so that thin bars can be hit
    const isHit = (bar) =>
      y >= bar.y && y <= bar.y + bar.height && x >= bar.x - near && x <= bar.x + bar.width + near;
    return calls.findLast((call) => isHit(barOf(scene, view, call))) ?? null;
  }

  function stateAt({ x, y }) {
    const rank = Math.floor((y - box.top) / scene.row);
    const isOn = states && x >= box.left && x <= box.right && rank >= 0 && rank < n;
    const top = box.top + rank * scene.row + scene.margin;
    if (!isOn || y < top || y > top + scene.state_height) return null;
    return stateOf(scene, states, rank, stateIndexAt(states[rank], view.toTime(x)));
  }

  /** A rank's state at the start of the selection. */
  function stateNear(rank) {
    const lane = states[rank];
    if (!lane) return null;
    const index = stateIndexAt(lane, selected?.start ?? view.from);
    return stateOf(scene, states, rank, clamp(index, 0, lane.codes.length - 1));
  }

  function keys() {
    const toggles = states ? { c: pathToggle.press, s: () => visit(stateNear(selected?.rank ?? 0)) } : {};
    return { ...toggles, ...(selected?.isState ? stateKeys() : callKeys()) };
  }

  function stateKeys() {
    const { rank, index } = selected;
    const at = (next) => () => visit(stateOf(scene, states, rank, next));
    return {
      ArrowLeft: at(index - 1),
      ArrowRight: at(index + 1),
      ArrowUp: () => visit(stateNear(rank - 1)),
      ArrowDown: () => visit(stateNear(rank + 1)),
      Home: at(0),
      End: at(states[rank].codes.length - 1),
      s: () => visit(nearest(calls.filter((call) => call.rank === rank))),
      Escape: () => select(null),
    };
  }

  function callKeys() {
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

  view.setSpan(...scene.view);
  return root;
}

export default widget(build);
