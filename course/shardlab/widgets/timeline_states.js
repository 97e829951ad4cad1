// The timeline's lane of states: each rank's, drawn and in words. Packed by timeline_states.py.

const STATE_TICK_S = 1e-7; // TICK_S there

/** By rank: { edges (n + 1 times), codes (n indices of looks) }. */
function unpackStates(states) {
  return states.ranks.map(([first, lengths, codes]) => {
    const edges = new Float64Array(lengths.length + 1);
    let ticks = 0;
    edges[0] = first;
    lengths.forEach((length, index) => (edges[index + 1] = first + (ticks += length) * STATE_TICK_S));
    return { edges, codes: Uint8Array.from(codes, Number) };
  });
}

/** The index of the state at a time: before the first -1, after the last their number. */
function stateIndexAt({ edges, codes }, time) {
  if (time < edges[0]) return -1;
  let [low, high] = [0, codes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle + 1] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** One state, as what can be selected; null beyond the first and the last. */
function stateOf(scene, lanes, rank, index) {
  const lane = lanes[rank];
  if (!lane || index < 0 || index >= lane.codes.length) return null;
  const code = lane.codes[index];
  return { isState: true, rank, index, name: scene.states.looks[code][0], meaning: scene.states.looks[code][3], start: lane.edges[index], end: lane.edges[index + 1] };
}

function stateBox({ plot: box, row, margin, state_height: height }, view, { rank, start, end }) {
  const left = view.toX(start);
  return { x: left, y: box.top + rank * row + margin, width: Math.max(view.toX(end) - left, 0.75), height };
}

function describeState(scene, { rank, name, meaning, start, end }) {
  const time = `${formatSeconds(start)} – ${formatSeconds(end)} (${formatSeconds(end - start)})`;
  const { path } = scene.states;
  const isOnPath = path.some(([on, from, to]) => on === rank && start < to && end > from);
  return [rankName(scene, rank), `${name}: ${meaning}`, time, isOnPath ? "on the critical path" : ""].filter(Boolean).join(" · ");
}

/**
 * Calls `bar(left, right, code)` for what is drawn of a lane: states narrower than a pixel become one for each pixel,
 * the one that fills most of it, and equal neighbors one. `shares` is scratch space, one entry per look.
 */
function mergedStates({ edges, codes }, view, box, shares, bar) {
  let [from, to, code] = [0, 0, -1];
  const add = (left, right, next) => {
    if (next === code && left - to < 1e-9) return (to = right);
    if (code >= 0) bar(from, to, code);
    return ([from, to, code] = [left, right, next]);
  };
  let [start, end, isOpen] = [0, 0, false];
  const close = () => {
    if (!isOpen) return;
    add(start, end, shares.indexOf(Math.max(...shares)));
    shares.fill(0);
    isOpen = false;
  };
  const scale = (box.right - box.left) / (view.to - view.from);
  const last = Math.min(stateIndexAt({ edges, codes }, view.to) + 1, codes.length);
  for (let index = Math.max(stateIndexAt({ edges, codes }, view.from), 0); index < last; index += 1) {
    const left = box.left + (edges[index] - view.from) * scale;
    const right = box.left + (edges[index + 1] - view.from) * scale;
    if (isOpen && (right - left >= 1 || Math.floor(left) !== Math.floor(start))) close();
    if (right - left >= 1) {
      add(left, right, codes[index]);
      continue;
    }
    if (!isOpen) [start, isOpen] = [left, true];
    end = right;
    shares[codes[index]] += right - left;
  }
  close();
  if (code >= 0) bar(from, to, code);
}

/** All lanes, color by color. Returns the number of bars. */
function drawStates(context, scene, view, lanes) {
  const { plot: box, row, margin, state_height: height, states } = scene;
  const shares = new Array(states.looks.length).fill(0);
  const bars = states.looks.map(() => []);
  lanes.forEach((lane, rank) => {
    const y = box.top + rank * row + margin;
    mergedStates(lane, view, box, shares, (left, right, code) => bars[code].push(left, y, right - left));
  });
  let drawn = 0;
  states.looks.forEach(([, color, isHatched], code) => {
    if (color === "none" || !bars[code].length) return;
    context.fillStyle = isHatched ? hatch(context, color) : color;
    for (let at = 0; at < bars[code].length; at += 3) {
      context.fillRect(bars[code][at], bars[code][at + 1], bars[code][at + 2], height);
    }
    drawn += bars[code].length / 3;
  });
  return drawn;
}
