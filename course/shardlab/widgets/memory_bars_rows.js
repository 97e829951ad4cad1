// The rows of the memory bars and their marks, the same as in memory_rows.py.

/** The stage with which another one is compared. */
const opposite = (stage) => (stage === 0 ? 3 : 0);
const sizeIn = (unit) => (bytes) => (unit === "GB" ? formatSi(bytes, "B") : formatBytes(bytes));
const barText = (x, y, words, look = {}) => ({ kind: "text", x, y, text: words, size: 11, ...look });

/**
 * { rows, toX(bytes), axisBytes (at its end) }. A row: { key, label, parts: [[category, bytes]], bytes,
 * boxes: [{ x, width }] of its parts, cut off at the end of the axis, y, height, top, thick (of its bar), chosen }.
 */
function barRows(scene, settings) {
  const { left, right, row: height, costs } = scene;
  const predicted = [0, 1, 2, 3].map((stage) => modelStates({ ...settings, stage }, costs));
  const parts = (bytes) => CATEGORIES.map((name) => [name, bytes[name]]);
  const { stage: chosen } = settings;
  const rows = predicted.map(({ device }, stage) => ({
    key: `stage ${stage}`, label: `stage ${stage}`, stage, parts: parts(device), y: scene.stages_y + stage * height,
    height, chosen: stage === chosen, solid: stage === chosen || stage === opposite(chosen),
  }));
  scene.measured.forEach((measured, index) => rows.push({
    key: scene.measured_labels[index], label: scene.measured_labels[index], parts: measured,
    y: scene.measured_y + index * scene.measured_row, height: scene.measured_row, chosen: true,
    solid: true, measured: true,
  }));
  rows.push({
    key: "host", label: "host", parts: parts(predicted[chosen].host), y: scene.host_y, height, chosen: true, solid: true,
  });
  for (const each of rows) each.bytes = each.parts.reduce((sum, [, bytes]) => sum + bytes, 0);
  const axisBytes = 1.04 * Math.max(...rows.map((each) => each.bytes), scene.capacity_bytes ?? 0);
  const perByte = (right - left) / axisBytes;
  for (const each of rows) {
    each.thick = each.height - (each.height >= 20 ? 8 : each.height >= 9 ? 3 : 1);
    each.top = each.y + (each.height - each.thick) / 2;
    let x = left;
    each.boxes = each.parts.map(([, bytes]) => {
      const box = { x, width: Math.max(Math.min(bytes * perByte, right - x), 0) };
      x += box.width;
      return box;
    });
  }
  return { rows, axisBytes, toX: (bytes) => left + bytes * perByte };
}

function barMarks(scene, settings, { rows, axisBytes, toX }) {
  const { left, right, measured, capacity_bytes: capacity } = scene;
  const { stage, unit, worldSize: n } = settings;
  const formatSize = sizeIn(unit);
  const marks = [];
  const heading = (y, words) => marks.push(barText(left, y - 8, words, { size: 12, fill: "muted" }));
  for (const tick of roundTicks(axisBytes, 5, unit === "GB")) {
    const x = toX(tick);
    marks.push({ kind: "path", d: `M${x} ${scene.stages_y - 4}L${x} ${scene.axis_y}`, stroke: "rule", opacity: 0.5 });
    marks.push(barText(x, scene.axis_y + 14, tick ? formatSize(tick) : "0", { anchor: "middle", fill: "muted" }));
  }
  heading(scene.stages_y - 18, `predicted on ${n === 1 ? "the device" : `each of ${n} devices`}, by stage`);
  if (measured.length) heading(scene.measured_y, "measured, by rank");
  heading(scene.host_y, "on the host, per rank");
  for (const each of rows) marks.push(...rowMarks(scene, each, toX, formatSize));
  if (measured.length) {
    const x = Math.min(toX(rows[stage].bytes), right);
    const height = measured.length * scene.measured_row + 4;
    marks.push({ kind: "rect", x: x - 1.5, y: scene.measured_y - 2, width: 3, height, fill: scene.predicted_color });
  }
  if (capacity !== null) {
    const x = toX(capacity);
    marks.push({
      kind: "path", d: `M${x} ${scene.stages_y - 6}L${x} ${scene.host_y - 26}`, stroke: "text",
      stroke_width: 2, dash: "6 4",
    });
    const back = x > left + 160;
    marks.push(barText(x + (back ? -6 : 6), scene.stages_y - 8, `capacity ${formatSize(capacity)}`, {
      anchor: back ? "end" : "start", weight: 600,
    }));
  }
  return [...marks, ...scene.legend];
}

function rowMarks(scene, each, toX, formatSize) {
  const { left, right, capacity_bytes: capacity } = scene;
  const { top, thick, solid } = each;
  const marks = [];
  const baseline = each.y + each.height / 2 + 4;
  const named = each.height >= 10;
  if (named) {
    const bold = each.stage !== undefined && each.chosen;
    const look = { size: 12, anchor: "end", weight: bold ? 700 : 400 };
    marks.push(barText(left - 10, baseline, `${bold ? "▶ " : ""}${each.label}`, look));
  }
  each.boxes.forEach(({ x, width }, index) => {
    const [category, bytes] = each.parts[index];
    if (width <= 0) return;
    const [color, ink] = scene.colors[category];
    marks.push({ kind: "rect", x, y: top, width, height: thick, fill: color, opacity: solid ? 1 : 0.45 });
    const words = formatSize(bytes);
    if (thick >= 14 && 0.58 * 11 * words.length + 8 <= width) {
      const look = { anchor: "middle", fill: solid ? ink : "text" };
      marks.push(barText(x + width / 2, top + thick / 2 + 4, words, look));
    }
  });
  const isHost = each.label === "host";
  const isLimited = capacity !== null && !isHost;
  const { x, width } = each.boxes.at(-1);
  const [edge, end] = [toX(capacity ?? 0), x + width];
  if (each.chosen && isLimited && end > edge) {
    marks.push({
      kind: "rect", x: edge, y: top - 1, width: end - edge, height: thick + 2,
      stroke: scene.error_color, stroke_width: 2.5,
    });
  }
  if (named) {
    let words = isHost && !each.bytes ? "nothing" : formatSize(each.bytes);
    if (isLimited) words += each.bytes <= capacity ? " ✓ fits" : " ✗ does not fit";
    marks.push(barText(right + 12, baseline, words));
  }
  return marks;
}

/** The same as ticks() in memory_rows.py. */
function roundTicks(end, count, decimal) {
  const rough = end / count;
  const step = decimal ? roundStep(rough) : 2 ** Math.ceil(Math.log2(rough));
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}
