// The traffic map's second mode: marks and readings come from traffic_links.py; this file has the selection
// and its words. A selection is { node, way, index }: one interval between two readings of what a node "sent"
// or "received", or its link as a whole (no way and no index).

const LINK_WAYS = ["sent", "received"];

/** The parts of the mode for one view: describe, at, keys, rows, summary, draw. */
function trafficLinks(scene) {
  const { links } = scene;
  const { time_s: times, bits_per_s: bitsPerS, plot: [left, right] } = links;
  const last = times.length - 2; // of the intervals
  const [start, end] = [times[0], times[times.length - 1]];
  const toX = (time) => left + ((time - start) / (end - start)) * (right - left);
  const speed = bitsPerS === null ? "" : formatSi(bitsPerS, "bit/s");
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  /** Bytes that a link had carried at a time between two readings. */
  function carriedAt(counted, time) {
    const next = times.findIndex((each) => each >= time);
    if (next === 0) return counted[0];
    if (next < 0) return counted.at(-1);
    const share = (time - times[next - 1]) / (times[next] - times[next - 1]);
    return counted[next - 1] + share * (counted[next] - counted[next - 1]);
  }

  /** " (94.1 % of 100 Mbit/s on average)": of what the link could carry while the view's block ran. */
  function average(view, node, way) {
    if (bitsPerS === null) return "";
    let [bytes, seconds] = [0, 0];
    for (const [from, to] of links.views[view.block].spans) {
      bytes += carriedAt(links[way][node], to) - carriedAt(links[way][node], from);
      seconds += to - from;
    }
    return `, on average ${percent((8 * bytes) / seconds / bitsPerS)} of ${speed}`;
  }

  function describe(view, { node, way, index }) {
    if (way === null) {
      const bytes = links.views[view.block];
      const words = LINK_WAYS.map((each) => `${each} ${exactBytes(bytes[each][node])}${average(view, node, each)}`);
      return { text: `node ${node} ${words.join("; ")}`, values: { selectedBytes: bytes.sent[node] } };
    }
    const bytes = links[way][node][index + 1] - links[way][node][index];
    const rate = (8 * bytes) / (times[index + 1] - times[index]);
    const share = bitsPerS === null ? "" : `, ${percent(rate / bitsPerS)} of the link's speed`;
    const when = `from ${formatSeconds(times[index])} to ${formatSeconds(times[index + 1])}`;
    return {
      text: `node ${node} ${way} ${exactBytes(bytes)} ${when}: ${formatSi(rate, "bit/s")}${share}`,
      values: { selectedBytes: bytes, ...(bitsPerS === null ? {} : { utilization: rate / bitsPerS }) },
    };
  }

  function at({ x, y }) {
    const node = Math.floor((y - links.top) / links.row);
    if (node < 0 || node >= links.nodes.length) return null;
    const [top, bottom] = plotOf(node);
    if (x < left || x > right || y < top) return { node, way: null, index: -1 };
    const time = start + ((x - left) / (right - left)) * (end - start);
    const next = times.findIndex((each) => each > time);
    const index = clamp(next < 0 ? last : next - 1, 0, last);
    return { node, way: LINK_WAYS[y < (top + bottom) / 2 ? 0 : 1], index };
  }

  /** Top and bottom of a node's plot, as in traffic_links.py. */
  function plotOf(node) {
    const top = links.top + node * links.row;
    return [top + links.link + 8, top + links.row - 8];
  }

  /** Up and down: the link of a node as a whole, what it sent, what it received, the next node. */
  function keys(selected, select) {
    const rows = links.nodes.flatMap((_, node) => [null, ...LINK_WAYS].map((way) => ({ node, way })));
    const row = selected ? rows.findIndex(({ node, way }) => node === selected.node && way === selected.way) : -1;
    const index = Math.max(selected?.index ?? 0, 0);
    const toRow = (next) => {
      const { node, way } = rows[clamp(next, 0, rows.length - 1)];
      select({ node, way, index: way === null ? -1 : index });
    };
    const toIndex = (next) => {
      const { node, way } = selected ?? rows[0];
      select({ node, way: way ?? LINK_WAYS[0], index: clamp(next, 0, last) });
    };
    return {
      ArrowUp: () => toRow(row - 1),
      ArrowDown: () => toRow(row + 1),
      ArrowLeft: () => toIndex(index - 1),
      ArrowRight: () => toIndex(selected?.way ? index + 1 : 0),
      Home: () => toIndex(0),
      End: () => toIndex(last),
      Escape: () => select(null),
    };
  }

  const headings = ["node", "from", "to", "sent bytes", "received bytes"];
  const rows = () => links.nodes.flatMap((_, node) => times.slice(1).map((to, index) => {
    const bytes = LINK_WAYS.map((way) => links[way][node][index + 1] - links[way][node][index]);
    return [node, formatSeconds(times[index]), formatSeconds(to), ...bytes];
  }));

  function summary(view) {
    const nodes = links.nodes.slice(0, 8).map((_, node) => describe(view, { node, way: null }).text);
    return `Links of the nodes, ${view.title}. ${nodes.join(". ")}.`;
  }

  function draw(context, theme, view, selected) {
    const drawn = paint(context, links.views[view.block].marks, theme) + paint(context, links.marks, theme);
    if (!selected) return drawn;
    const { node, way, index } = selected;
    const [top, bottom] = plotOf(node);
    if (way === null) {
      const [from, to] = links.box;
      paintFocus(context, theme, from, links.top + node * links.row + 6, to - from, links.row - 14);
    } else {
      const [from, to] = [toX(times[index]), toX(times[index + 1])];
      const half = (bottom - top) / 2;
      paintFocus(context, theme, from, way === LINK_WAYS[0] ? top : top + half, Math.max(to - from, 2), half);
    }
    return drawn + 1;
  }

  return { describe, at, keys, headings, rows, summary, draw };
}
