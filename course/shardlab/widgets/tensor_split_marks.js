// The marks of the tensor split, as in tensor_split_marks.py; `scene` has cuts and positions.

const splitCut = (scene, settings) => scene.cuts.find(({ name }) => name === settings.cut);

function splitSide(scene, letter, { tokens, width }) {
  return letter === "T" ? tokens : width * (letter === "4D" ? scene.hidden_factor : 1);
}

/** Rows and columns of a matrix, or of its gradient. */
function splitShape(scene, name, settings) {
  const plain = name.replace(/^d/, "");
  const [, ...sides] = splitCut(scene, settings).matrices.find(([matrix]) => matrix === plain);
  return sides.map((letter) => splitSide(scene, letter, settings));
}

/** What each rank sends in a step with a ring; gloo's reduce-scatter is an all-reduce. */
function splitStepBytes(scene, step, settings) {
  if (!step.op) return 0;
  const [rows, columns] = splitShape(scene, step.matrix, settings);
  const op = step.op === "reduce_scatter" && settings.gloo ? "all_reduce" : step.op;
  const n = settings.ranks;
  return ((scene.ring_factor[op] * (n - 1)) / n) * rows * columns * settings.element_bytes;
}

function splitPassBytes(scene, settings) {
  const sent = [0, 0];
  for (const step of splitCut(scene, settings).steps) {
    sent[Number(step.backward)] += splitStepBytes(scene, step, settings);
  }
  return sent;
}

function splitWeightBytes(scene, settings) {
  let elements = 0;
  for (const [name] of splitCut(scene, settings).matrices) {
    if (!name.startsWith("W")) continue;
    const [rows, columns] = splitShape(scene, name, settings);
    elements += rows * columns;
  }
  return elements * settings.element_bytes;
}

/** Where a rank's part is drawn; partial sums are stacked, the last one in front. */
function splitPartBox([x, y, width, height], how, rank, n) {
  if (how === "columns") return [x + (width * rank) / n, y, width / n, height];
  if (how === "rows") return [x, y + (height * rank) / n, width, height / n];
  const off = Math.min(5, 24 / Math.max(n - 1, 1));
  const back = n - 1 - rank;
  const shrink = off * (n - 1);
  return [x + off * back, y + shrink - off * back, width - shrink, height - shrink];
}

/** The matrices after a step, and the collectives up to then. */
function splitMarks(scene, settings) {
  const cut = splitCut(scene, settings);
  const n = settings.ranks;
  const { layouts } = cut.steps[settings.step];
  const marks = [];
  const centered = ([x, y, width, height], text, fill) =>
    marks.push({
      kind: "text", x: x + width / 2, y: y + height / 2 + 4, text, size: 11, anchor: "middle", fill,
    });
  for (const [name, box] of Object.entries(cut.boxes)) {
    const [x, y, width, height] = box;
    const [rows, columns] = splitShape(scene, name, settings);
    marks.push({ kind: "text", x, y: y - 18, text: name, size: 13, weight: 600 });
    marks.push({ kind: "text", x, y: y - 5, text: `${rows} × ${columns}`, size: 11, fill: "muted" });
    const how = layouts[name];
    const whole = { kind: "rect", x, y, width, height, radius: 2 };
    if (!how) marks.push({ ...whole, stroke: "rule", dash: "3 4" });
    else if (how === "replicated") {
      marks.push({ ...whole, fill: "text", opacity: 0.16 });
      centered(box, "all ranks", "muted");
    } else {
      for (let rank = 0; rank < n; rank += 1) {
        const own = splitPartBox(box, how, rank, n);
        const [left, top, wide, high] = own;
        const [fill, ink] = scene.colors[rank];
        if (how === "partial") {
          const sheet = { kind: "rect", x: left, y: top, width: wide, height: high, fill, radius: 2 };
          marks.push({ ...sheet, stroke: "surface" });
          continue;
        }
        marks.push({
          kind: "rect", x: left + 0.5, y: top + 0.5, width: wide - 1, height: high - 1, fill, radius: 2,
        });
        if (Math.min(wide, high) >= 11) centered(own, String(rank), ink);
      }
      if (how === "partial") {
        centered(splitPartBox(box, how, n - 1, n), "partial", scene.colors[n - 1][1]);
      }
    }
  }
  marks.push(...cut.signs);
  for (const step of cut.steps.slice(0, settings.step + 1)) {
    if (step.op) marks.push(...splitPill(scene, step, cut.boxes[step.matrix], settings));
  }
  return marks;
}

/** The collective, below the matrix that it completes. */
function splitPill(scene, step, [x, , width], settings) {
  const text = `${step.op.replace("_", "-")} ${formatBytes(splitStepBytes(scene, step, settings))}`;
  const room = 0.58 * 11 * text.length + 12;
  const left = Math.min(Math.max(x + width / 2 - room / 2, 0), scene.width - room);
  const top = scene.row_centers[Number(step.backward)] + scene.pill_offset;
  const [fill, ink] = scene.ops[step.op];
  return [
    { kind: "rect", x: left, y: top, width: room, height: 19, fill, radius: 9.5 },
    {
      kind: "text", x: left + room / 2, y: top + 13.5, text, size: 11, anchor: "middle", fill: ink,
    },
  ];
}

/** Bytes of both passes, predicted and measured, and the weights on each rank. */
function splitBars(scene, settings, measured) {
  const predicted = splitPassBytes(scene, settings);
  const [bars, left, right] = scene.bars;
  const maxBytes = Math.max(...predicted, ...(measured ?? [0]), 1);
  const marks = [];
  ["forward", "backward"].forEach((name, index) => {
    const y = bars + 22 * index;
    marks.push({ kind: "text", x: left - 10, y: y + 4, text: name, size: 11, anchor: "end" });
    const bar = (value, fill, off) =>
      marks.push({
        kind: "rect", x: left, y: y + off, width: Math.max((value / maxBytes) * (right - left), 1),
        height: measured ? 7 : 14, fill,
      });
    bar(predicted[index], scene.roles.predicted, -7);
    if (measured) bar(measured[index], scene.roles.measured, 1);
    const seen = measured ? `, measured ${formatBytes(measured[index])}` : "";
    const text = formatBytes(predicted[index]) + seen;
    marks.push({ kind: "text", x: right + 8, y: y + 4, text, size: 11 });
  });
  const total = splitWeightBytes(scene, settings);
  const text = `weights ${formatBytes(total / settings.ranks)} of ${formatBytes(total)}`;
  marks.push({ kind: "text", x: 0, y: bars + 26, text, size: 11, fill: "muted" });
  return marks;
}
