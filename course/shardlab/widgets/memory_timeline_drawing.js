// Draws the visible part of the memory timeline. `shown`: { scene, run, log, view, selected }, where
// `view` is a timeView and `selected` an entry of the log or null.

function drawMemory(context, theme, shown) {
  const { scene, log, view, selected } = shown;
  const box = scene.plot;
  const toY = (count) => box.bottom - (count / scene.max_bytes) * (box.bottom - box.top);
  drawMemoryBands(context, theme, shown);
  let drawn = paint(context, scene.background, theme);
  drawn += clipped(context, box, () => drawMemoryAreas(context, shown, toY));
  drawn += drawMemoryPhases(context, theme, shown);
  drawn += drawTimeAxis(context, theme, { ...box, from: view.from - log.zero_s, to: view.to - log.zero_s });
  drawn += paint(context, [...scene.lines, ...otherPeaks(context, theme, shown, toY)], theme);
  if (log.peak_bytes) drawMemoryPeak(context, theme, shown, toY);
  const x = selected === null ? NaN : view.toX(log.times_s[selected]);
  if (x >= box.left && x <= box.right) paintMoment(context, theme, x, box);
  drawMemoryLegend(context, theme, shown);
  return drawn;
}

/** Each category from the bottom up to its upper edge, the lower ones drawn on top. */
function drawMemoryAreas(context, { scene, log, view }, toY) {
  const { plot: box, categories } = scene;
  const { times_s, bytes } = log;
  const first = Math.max(log.entryAt(view.from), 0);
  const last = log.entryAt(view.to);
  if (last < first) return 0;
  const edges = []; // of each category, entry by entry
  const below = new Float64Array(last - first + 1);
  for (const row of bytes) {
    for (let i = first; i <= last; i += 1) below[i - first] += row[i];
    edges.push(below.slice());
  }
  const end = Math.min(view.toX(log.span_s[1]), box.right + 1);
  for (let row = edges.length - 1; row >= 0; row -= 1) {
    if (!log.category_peaks[row]) continue;
    context.fillStyle = categories[row][1];
    context.beginPath();
    context.moveTo(view.toX(times_s[first]), box.bottom);
    for (let i = first; i <= last; i += 1) {
      const y = toY(edges[row][i - first]);
      context.lineTo(view.toX(times_s[i]), y);
      context.lineTo(i < last ? view.toX(times_s[i + 1]) : end, y);
    }
    context.lineTo(end, box.bottom);
    context.fill();
  }
  return (last - first + 1) * edges.length;
}

function drawMemoryBands(context, theme, { scene: { plot: box }, log, view }) {
  context.fillStyle = theme.text;
  context.globalAlpha = 0.05;
  for (const [, start, end] of log.phases) {
    const [from, to] = [start, end].map((time) => clamp(view.toX(time), box.left, box.right));
    context.fillRect(from, box.top, to - from, box.bottom - box.top);
  }
  context.globalAlpha = 1;
}

function drawMemoryPhases(context, theme, { scene, log, view }) {
  const box = scene.plot;
  const free = new Array(scene.lanes).fill(box.left);
  let drawn = 0;
  for (const [name, start, end, lane] of log.phases) {
    const [left, right] = [view.toX(start), view.toX(end)];
    if (lane >= scene.lanes || right < box.left || left > box.right) continue;
    drawn += 1;
    const [from, to] = [Math.max(left, box.left), Math.min(right, box.right)];
    const y = 4 + scene.lane * lane;
    context.globalAlpha = 0.6;
    context.fillStyle = theme.muted;
    context.fillRect(from, y + 13, Math.max(to - from - 1, 1), 3);
    context.globalAlpha = 1;
    const d = [left, right]
      .filter((x) => x >= box.left && x <= box.right)
      .map((x) => `M${x} ${box.top}V${box.bottom}`)
      .join("");
    paint(context, [{ kind: "path", d, stroke: "text", opacity: 0.35, dash: "2 3" }], theme);
    // A name may extend past its bar; the next one then starts further right, if it fits.
    context.font = `11px ${theme.font}`;
    const wide = context.measureText(name).width + 6;
    const at = Math.max(from, free[lane]);
    if (at > from && at + wide > to) continue;
    paintText(context, { x: at, y: y + 10, text: name, size: 11, fill: "muted" }, theme);
    free[lane] = at + wide;
  }
  return drawn;
}

/** The same rank's peaks in other runs: dotted, named on the right, or on the left if this run's peak
 * is on the right and no predictions are named there. Lines close together share a label. */
function otherPeaks(context, theme, { scene, run, log, view }, toY) {
  const box = scene.plot;
  const peakX = clamp(view.toX(log.peak_s), box.left, box.right);
  const atLeft = !Object.keys(scene.predicted).length && peakX > (box.left + box.right) / 2;
  const others = scene.runs
    .filter((each) => each !== run)
    .map(({ name, ranks }) => ({ name, bytes: ranks[log.rank]?.peak_bytes }))
    .filter(({ bytes }) => bytes !== undefined)
    .sort((a, b) => b.bytes - a.bytes);
  const marks = [];
  const close = [];
  for (const other of others) {
    const y = toY(other.bytes);
    const d = `M${box.left} ${y}H${box.right}`;
    marks.push({ kind: "path", d, stroke: "muted", stroke_width: 1.5, dash: "1 4" });
    if (close.length && y - toY(close.at(-1)[0].bytes) < 14) close.at(-1).push(other);
    else close.push([other]);
  }
  context.font = `11px ${theme.font}`;
  for (const group of close) {
    const y = toY(group[0].bytes);
    const each = group.map(({ name, bytes }) => `${name} ${formatBytes(bytes)}`).join(", ");
    const text = `peak${group.length > 1 ? "s" : ""}: ${each}`;
    const width = context.measureText(text).width + 8;
    const backdrop = { x: atLeft ? box.left + 2 : box.right - 2 - width, y: y - 16, width, height: 14 };
    const place = atLeft ? { x: box.left + 6 } : { x: box.right - 6, anchor: "end" };
    marks.push(
      { kind: "rect", ...backdrop, fill: "surface", opacity: 0.8 },
      { kind: "text", ...place, y: y - 5, text, size: 11 },
    );
  }
  return marks;
}

function drawMemoryPeak(context, theme, { scene: { plot: box }, log, view }, toY) {
  const [x, y] = [view.toX(log.peak_s), toY(log.peak_bytes)];
  if (x < box.left || x > box.right) return;
  context.beginPath();
  context.arc(x, y, 4, 0, 7);
  context.fillStyle = theme.surface;
  context.fill();
  context.strokeStyle = theme.text;
  context.lineWidth = 2;
  context.stroke();
  const text = `peak ${formatBytes(log.peak_bytes)}`;
  context.font = `600 12px ${theme.font}`;
  const half = context.measureText(text).width / 2 + 4;
  const middle = clamp(x, box.left + half, box.right - half);
  paintText(context, { x: middle, y: y - 10, text, weight: 600, anchor: "middle" }, theme);
}

/** The legend, with the bytes of each category at the selected moment, else at the peak. */
function drawMemoryLegend(context, theme, { scene, log, selected }) {
  const { plot: box, categories, predicted } = scene;
  const x = box.right + 16;
  const y = box.top + 12;
  const byCategory = categories.some(([name]) => name in predicted);
  const measuredX = scene.width - (byCategory ? 76 : 4);
  const predictedX = scene.width - 4;
  const index = selected ?? log.peakEntry;
  const counts = log.countsOf(index);
  const when = index === log.peakEntry ? "at the peak" : `at ${log.sinceZero(log.times_s[index])}`;
  const write = (mark) => paintText(context, mark, theme);
  write({ x, y, text: when, weight: 600 });
  if (byCategory) write({ x: predictedX, y, text: "predicted", size: 11, anchor: "end", fill: "muted" });
  categories.forEach(([name, color], row) => {
    const below = y + 22 * (categories.length - row);
    context.fillStyle = color;
    roundedBar(context, x, below - 10, 11, 11, 2);
    context.fill();
    write({ x: x + 17, y: below, text: name });
    write({ x: measuredX, y: below, text: formatBytes(counts[row]), anchor: "end" });
    if (!(name in predicted)) return;
    const text = formatBytes(predicted[name]);
    write({ x: predictedX, y: below, text, anchor: "end" });
    context.fillStyle = scene.predicted_color;
    const width = context.measureText(text).width;
    context.fillRect(predictedX - width, below + 3, width, 2);
  });
  const below = y + 22 * categories.length + 8;
  context.fillStyle = theme.rule;
  context.fillRect(x, below, scene.width - 4 - x, 1);
  write({ x: x + 17, y: below + 18, text: "total", weight: 600 });
  write({ x: measuredX, y: below + 18, text: formatBytes(sum(counts)), anchor: "end", weight: 600 });
}
