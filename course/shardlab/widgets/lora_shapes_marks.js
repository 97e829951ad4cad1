// The numbers and marks of LoRA's shapes, as in lora_shapes_marks.py; a test compares the two.

const LORA = {
  top: 64, height: 170, gap: 44, minPitch: 125, minThickness: 1, minLettered: 14, left: 46, right: 560, memory: 262,
  sent: 348, row: 22,
};
const loraCount = (count) => count.toLocaleString("en-US");

/** [name of a weight, [rows, columns]] of one layer. */
function loraWeights(scene, { width }, modules) {
  const scaled = ([name, sides]) => [name, sides.map((side) => side * width)];
  return new Map(scene.modules).get(modules).map(scaled);
}

function loraCosts(scene, settings) {
  const { layers, ranks, r, modules } = settings;
  const total = (weights, of) => layers * weights.reduce((sum, [, shape]) => sum + of(...shape), 0);
  const parameters = total(loraWeights(scene, settings, "all linear"), (rows, columns) => rows * columns);
  const adapters = total(loraWeights(scene, settings, modules), (rows, columns) => r * (rows + columns));
  const sent = (elements) => 2 * (((ranks - 1) * elements * scene.element_bytes) / ranks);
  return {
    parameters, adapters,
    fullBytes: scene.trained_bytes * parameters,
    loraBytes: scene.element_bytes * parameters + scene.trained_bytes * adapters,
    fullSentBytes: sent(parameters), loraSentBytes: sent(adapters),
  };
}

function loraTrained({ adapters, parameters }) {
  const share = Number(((100 * adapters) / parameters).toPrecision(3));
  return `${formatCount(adapters)} trained parameters, ${share} % of ${formatCount(parameters)}`;
}

/** For each weight { name, shape, boxes: { W, A, B } }: A is above W, B to the right of it. */
function loraBoxes(scene, settings) {
  const weights = loraWeights(scene, settings, settings.modules);
  const scale = LORA.height / (Math.max(...weights.map(([, [rows]]) => rows)) + settings.r);
  const thin = Math.max(settings.r * scale, LORA.minThickness);
  let x = 0;
  return weights.map(([name, shape]) => {
    const [height, width] = shape.map((side) => side * scale);
    const y = LORA.top + thin + 2;
    const boxes = {
      W: [x, y, width, height], A: [x, LORA.top, width, thin], B: [x + width + 2, y, thin, height],
    };
    x += Math.max(width + thin + LORA.gap, LORA.minPitch);
    return { name, shape, boxes };
  });
}

function loraMarks(scene, settings) {
  const { looks, element_bytes: each, adam_bytes: adam } = scene;
  const { r } = settings;
  const costs = loraCosts(scene, settings);
  const rect = ([x, y, width, height], fill, isHatched = false) =>
    ({ kind: "rect", x, y, width, height, fill, hatch: isHatched });
  const text = (x, y, words, more = {}) => ({ kind: "text", x, y, text: words, ...more });
  const small = (x, y, words) => text(x, y, words, { size: 11, fill: "muted" });
  const value = (x, y, bytes) => text(x + 8, y + 12, formatSi(bytes, "B"), { fill: "muted" });

  function weight({ name, shape: [rows, columns], boxes }) {
    const [x] = boxes.W;
    const [high, wide] = [rows, columns].map(loraCount);
    return [
      text(x, 12, name, { weight: 600 }),
      small(x, 27, `${high} × ${wide}`), small(x, 41, `A: ${r} × ${wide}`), small(x, 55, `B: ${high} × ${r}`),
      ...Object.entries(boxes).flatMap(([kind, box]) => matrix(kind, box)),
    ];
  }

  function matrix(kind, box) {
    const [x, y, width, height] = box;
    const drawn = rect(box, looks.parameters, kind === "W");
    if (Math.min(width, height) < LORA.minLettered) return [drawn];
    const fill = kind === "W" ? "text" : scene.ink;
    return [drawn, text(x + width / 2, y + height / 2 + 4, kind, { anchor: "middle", weight: 600, fill })];
  }

  function memory() {
    const y = LORA.memory;
    const scale = (LORA.right - LORA.left) / Math.max(costs.fullBytes, costs.loraBytes);
    const marks = [text(0, y, "Memory of each rank", { weight: 600 })];
    for (const [x, name, words, isHatched] of [
      [150, "parameters", "frozen weights", true], [268, "parameters", "trained weights"],
      [392, "gradients", "gradients"], [480, "optimizer", "Adam's states"],
    ]) marks.push(rect([x, y - 9, 10, 10], looks[name], isHatched), small(x + 15, y, words));
    const rows = [
      ["full", 0, costs.parameters, costs.fullBytes], ["LoRA", costs.parameters, costs.adapters, costs.loraBytes],
    ];
    rows.forEach(([label, frozen, elements, total], row) => {
      const top = y + 10 + LORA.row * row;
      let x = LORA.left;
      marks.push(text(0, top + 12, label));
      for (const [bytes, name, isHatched] of [
        [frozen * each, "parameters", true], [elements * each, "parameters"],
        [elements * each, "gradients"], [elements * adam, "optimizer"],
      ]) {
        if (bytes) marks.push(rect([x, top, bytes * scale, 15], looks[name], isHatched));
        x += bytes * scale;
      }
      marks.push(value(x, top, total));
    });
    return marks;
  }

  function sent() {
    const marks = [text(0, LORA.sent, "Sent by each rank in a step", { weight: 600 })];
    const maxBytes = Math.max(costs.fullSentBytes, costs.loraSentBytes, 1);
    [["full", costs.fullSentBytes], ["LoRA", costs.loraSentBytes]].forEach(([label, bytes], row) => {
      const y = LORA.sent + 10 + LORA.row * row;
      const width = (bytes / maxBytes) * (LORA.right - LORA.left);
      marks.push(text(0, y + 12, label), rect([LORA.left, y, width, 15], looks.sent));
      marks.push(value(LORA.left + width, y, bytes));
    });
    return marks;
  }

  return [...loraBoxes(scene, settings).flatMap(weight), ...memory(), ...sent()];
}
