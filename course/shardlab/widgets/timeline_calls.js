// The calls of the timeline, in words; n is the number of ranks.

/** The scene's calls as objects. `other`: the call that this one waited for or exchanged data with. */
function callsOf(scene) {
  const calls = scene.calls.map(([rank, lane, op, bytes, peers, start, end, source, code, moved, other], index) => ({
    rank, lane, op, bytes, peers, start, end, source, code, moved, other, index,
    waited: moved === null ? 0 : Math.max(moved - start, 0),
  }));
  for (const call of calls) call.other = call.other === null ? null : calls[call.other];
  return calls;
}

function summarizeCalls(scene, calls) {
  const n = scene.world_size;
  const waits = scene.waits.slice(0, 16).map(([a, b]) => `${rankName(scene, a)} waits for ${rankName(scene, b)}`);
  const ranks = Array.from({ length: Math.min(n, 8) }, (_, rank) => `${rankName(scene, rank)}: ${firstCalls(calls, rank)}`);
  const inStates = scene.states ? [scene.states.words, scene.states.path_words] : [];
  return [`Timeline of ${calls.length} calls on ${n} ranks`, ...ranks, ...waits, ...inStates].join(". ") + ".";
}

/** The first calls of a rank, with their times. */
function firstCalls(calls, rank) {
  const mine = calls.filter((call) => call.rank === rank);
  const words = mine.slice(0, 4).map(({ op, start, end }) =>
    end === null ? `${op}, which never ended` : `${op} ${formatSeconds(end - start)}`);
  if (mine.length > 4) words.push(`${mine.length - 4} more calls`);
  return words.join(", ") || "no calls";
}

function callRow(call, n) {
  return [
    call.rank, call.op, peersText(call, n), call.bytes, formatSeconds(call.start), formatSeconds(call.waited),
    call.end === null ? "never" : formatSeconds(call.end), call.source, call.code,
  ];
}

function peersText({ op, peers }, n) {
  if (Array.isArray(peers)) return peers.length === n ? "all ranks" : `ranks ${peers.join(", ")}`;
  if (peers === null) return "any rank";
  return `${op === "send" ? "→" : "←"} rank ${peers}`;
}

function describeCall(call, scene) {
  const { rank, op, bytes, start, end, source, code, other, waited } = call;
  const time =
    end === null
      ? `started at ${formatSeconds(start)} and never ended`
      : `${formatSeconds(start)} – ${formatSeconds(end)} (${formatSeconds(end - start)})`;
  const wait = other && waited ? `${rankName(scene, other.rank)} began ${formatSeconds(waited)} later` : "";
  const where = [source, code].filter(Boolean).join(": ");
  const parts = [rankName(scene, rank), `${op} ${peersText(call, scene.world_size)}`, exactBytes(bytes), time, wait, where];
  return parts.filter(Boolean).join(" · ");
}

/** The label of a call that never ended. */
function pendingLabel({ op, peers, source }) {
  const many = Array.isArray(peers) ? `of ${peers.length} ranks` : null;
  const one = peers === null ? "from any rank" : `${op === "send" ? "to" : "from"} rank ${peers}`;
  return `${op} ${many ?? one}, ${source}`;
}

/** [from, to, start, end] of each arrow of a call: a message, or the rank that a collective waited for. */
function arrowsOf(call, calls) {
  const { other } = call;
  if (!other) return [];
  if (!Array.isArray(call.peers)) {
    const [from, to] = call.op === "send" ? [call, other] : [other, call];
    if (to.end === null) return [];
    const left = from.end === null ? from.start : Math.min(Math.max(from.start, to.start), from.end);
    return [[from, to, left, to.end]];
  }
  const waiting = other === call ? calls.filter((each) => each.other === call && each !== call) : [call];
  return waiting.map((each) => [other, each, other.start, other.start]);
}
