// The same model as in shardlab/simulate/fsdp.py, so that sliders need no kernel; a test compares them.
// Row 0 is the root, row k + 1 is unit k. A span is { row, kind, start, end }, in seconds.

const UNIT_CATEGORIES = ["parameters", "gradients", "buckets"]; // of live bytes, from the bottom

/** One step: { names, spans, times, live: { category: [bytes at each time] }, step }. */
function simulateUnits(settings) {
  const count = settings.units;
  const unitBytes = (settings.parameter_bytes - settings.root_bytes) / count;
  const bytes = [settings.root_bytes, ...new Array(count).fill(unitBytes)];
  const ranks = settings.world_size;
  const transferSeconds = (row) =>
    settings.message_s + ((ranks - 1) / ranks) * bytes[row] / settings.link_bytes_per_s;
  let now = 0; // of the computation
  let link = 0; // when the link is free
  const gathered = new Map(); // row -> end of its all-gather, until it is copied
  const whole = new Map(); // row -> since when it is whole
  let kept = null; // row whose buffer stays until the next one is copied
  let sent = null; // row whose gradients were sent last
  let sentAt = 0;
  const spans = [];
  const changes = [[0, "parameters", settings.parameter_bytes / ranks]];

  const change = (category, amount) => changes.push([now, category, amount]);

  function transfer(row, kind) {
    const start = Math.max(now, link);
    link = start + transferSeconds(row);
    spans.push({ row, kind, start, end: link });
    if (!settings.overlap) now = link;
    return link;
  }

  function gather(row) {
    if (gathered.has(row) || whole.has(row)) return;
    change("buckets", bytes[row]);
    gathered.set(row, transfer(row, "gather"));
  }

  function copy(row) {
    now += bytes[row] / settings.copy_bytes_per_s;
  }

  /** Waits until the unit is whole. */
  function use(row, inForward) {
    if (whole.has(row) || !bytes[row]) return;
    gather(row);
    now = Math.max(now, gathered.get(row));
    gathered.delete(row);
    change("parameters", bytes[row]);
    copy(row);
    let released = row;
    if (inForward) [released, kept] = [kept, row];
    if (released !== null) change("buckets", -bytes[released]);
    whole.set(row, now);
  }

  function compute(row, kind, seconds) {
    spans.push({ row, kind, start: now, end: now + seconds });
    now += seconds;
  }

  function free(row) {
    spans.push({ row, kind: "whole", start: whole.get(row), end: now });
    whole.delete(row);
    change("parameters", -bytes[row]);
  }

  function reduce(row) {
    if (sent !== null) {
      now = Math.max(now, sentAt);
      change("buckets", -bytes[sent]);
    }
    change("buckets", bytes[row]);
    copy(row);
    change("gradients", -bytes[row]);
    change("gradients", bytes[row] / ranks);
    [sent, sentAt] = [row, transfer(row, "reduce")];
  }

  use(0, true);
  for (let row = 1; row <= count; row += 1) {
    use(row, true);
    const last = Math.min(row + settings.forward_prefetch, count);
    for (let ahead = row + 1; ahead <= last; ahead += 1) gather(ahead);
    compute(row, "forward", settings.forward_s / count);
    if (settings.reshard_after_forward) free(row);
  }
  now += settings.head_s;
  change("buckets", -bytes[kept ?? 0]);
  const turn = now;
  for (let row = count; row >= 1; row -= 1) {
    use(row, false);
    const last = Math.max(row - settings.backward_prefetch, 1);
    for (let ahead = row - 1; ahead >= last; ahead -= 1) gather(ahead);
    change("gradients", bytes[row]);
    compute(row, "backward", (settings.backward_ratio * settings.forward_s) / count);
    free(row);
    reduce(row);
  }
  change("gradients", bytes[0]);
  if (bytes[0]) {
    spans.push({ row: 0, kind: "forward", start: whole.get(0), end: turn });
    spans.push({ row: 0, kind: "backward", start: turn, end: now });
    free(0);
    reduce(0);
  }
  now = Math.max(now, link);
  change("buckets", -bytes[sent ?? 0]);

  const live = Object.fromEntries(UNIT_CATEGORIES.map((name) => [name, []]));
  const held = { parameters: 0, gradients: 0, buckets: 0 };
  for (const [, category, amount] of changes) {
    held[category] += amount;
    for (const name of UNIT_CATEGORIES) live[name].push(held[name]);
  }
  const names = ["root", ...bytes.slice(1).map((_, unit) => `unit ${unit}`)];
  return { names, spans, times: changes.map(([time]) => time), live, step: now };
}

const liveTotal = ({ live }, index) =>
  UNIT_CATEGORIES.reduce((sum, name) => sum + live[name][index], 0);

/** { bytes, index } of the most live bytes, when they are first reached. */
function peakOfUnits(timeline) {
  let best = 0;
  for (let i = 1; i < timeline.times.length; i += 1) {
    if (liveTotal(timeline, i) > liveTotal(timeline, best)) best = i;
  }
  return { bytes: liveTotal(timeline, best), index: best };
}

/** Number of all-gathers and reduce-scatters. */
function messagesOf({ spans }) {
  const count = (kind) => spans.filter((span) => span.kind === kind).length;
  return { gather: count("gather"), reduce: count("reduce") };
}
