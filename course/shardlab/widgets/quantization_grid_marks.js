// The numbers and marks of the quantization grid, as in quantization_grid_marks.py; a test compares.

const GRID = { bins: 88, histogram: [28, 132], codes: [136, 150], bitsBar: 344, maxBits: 10 };

const gridPercent = (share) => `${(100 * share).toFixed(2)} %`;

function gridPoints(scene, { bits, codes }) {
  if (codes === "nf4") return scene.nf4;
  const maxCode = 2 ** (bits - 1) - 1;
  return Array.from({ length: 2 * maxCode + 1 }, (_, code) => (code - maxCode) / maxCode);
}

/** The index of the first of the sorted numbers that is not below `value`. */
function gridSearch(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Rounds each weight to the nearest code point of its block: { weights, points, blocks, error, ... }. */
function gridQuantize(scene, settings) {
  const meanSquare = (values) => values.reduce((sum, value) => sum + value ** 2, 0) / values.length;
  const rms = Math.sqrt(meanSquare(scene.weights));
  const weights = [...scene.weights];
  if (settings.outlier) weights[scene.outlier_at] = settings.outlier * rms;
  const points = gridPoints(scene, settings);
  const between = points.slice(1).map((point, index) => (point + points[index]) / 2);
  const blocks = [];
  for (let from = 0; from < weights.length; from += settings.block) {
    const own = weights.slice(from, from + settings.block);
    const scale = Math.max(...own.map(Math.abs));
    const codes = own.map((weight) => gridSearch(between, weight / (scale || 1)));
    const error = Math.sqrt(meanSquare(own.map((weight, i) => points[codes[i]] * scale - weight))) / rms;
    blocks.push({ weights: own, scale, used: new Set(codes), error });
  }
  const bitsPerWeight = settings.bits + scene.scale_bits / settings.block;
  return {
    weights, points, blocks, bitsPerWeight, bytes: (bitsPerWeight * weights.length) / 8,
    error: Math.sqrt(meanSquare(blocks.map(({ error }) => error))),
  };
}

function gridSummary(found, { bits, codes, block, outlier }) {
  return (
    `${codes === "nf4" ? "NF4" : `int${bits}`}, blocks of ${block.toLocaleString("en-US")}, ` +
    `${outlier ? `one outlier of ${outlier}× the rms` : "no outlier"}: error ${gridPercent(found.error)}, ` +
    `${found.bitsPerWeight.toFixed(2)} bits per weight, ${formatBytes(found.bytes)}`
  );
}

function gridMarks(scene, found, settings) {
  const { left, width: right, looks } = scene;
  const shown = Math.floor(settings.weight / settings.block);
  const block = found.blocks[shown];
  const limit = Math.max(...found.weights.map(Math.abs));
  const [middle, half] = [(left + right) / 2, (right - left) / 2];
  const rect = (x, y, width, height, more) => ({ kind: "rect", x, y, width, height, ...more });
  const title = (y, text) => ({ kind: "text", x: left, y, text, weight: 600 });
  const small = (x, y, text, anchor = "start") => ({ kind: "text", x, y, text, size: 11, anchor, fill: "muted" });

  function histogram(weights, fill, opacity) {
    const [top, bottom] = GRID.histogram;
    const counts = Array(GRID.bins).fill(0);
    for (const weight of weights) {
      counts[Math.min(Math.floor(((weight / limit + 1) / 2) * GRID.bins), GRID.bins - 1)] += 1;
    }
    const step = (right - left) / GRID.bins;
    const maxCount = Math.max(...counts);
    return counts.flatMap((count, index) => {
      const height = (count / maxCount) * (bottom - top);
      return count ? [rect(left + index * step, bottom - height, step - 0.5, height, { fill, opacity })] : [];
    });
  }

  function codes() {
    const [top, bottom] = GRID.codes;
    return found.points.map((point, code) => rect(
      middle + ((point * block.scale) / limit) * half - 0.75, top, 1.5, bottom - top,
      { fill: "text", opacity: block.used.has(code) ? 1 : 0.25 },
    ));
  }

  function blocks() {
    const [top, bottom] = scene.block_bars;
    const maxError = roundStep(Math.max(...found.blocks.map(({ error }) => error), 1e-4));
    const step = (right - left) / found.blocks.length;
    const width = step - Math.min(0.15 * step, 1.5);
    return [
      title(top - 12, `Error of each block; over all blocks ${gridPercent(found.error)}`),
      small(left - 6, top + 8, `${Number((100 * maxError).toPrecision(6))} %`, "end"),
      small(left - 6, bottom, "0", "end"),
      ...found.blocks.map(({ error }, index) => {
        const height = (error / maxError) * (bottom - top);
        return rect(left + index * step, bottom - height, width, height, { fill: looks.error });
      }),
      rect(left, bottom, right - left, 1, { fill: "rule" }),
      small(left, bottom + 15, "block 1"),
      ...(found.blocks.length > 1 ? [small(right, bottom + 15, formatCount(found.blocks.length), "end")] : []),
      rect(left + shown * step - 1, top - 1, width + 2, bottom - top + 3, {
        stroke: "text", stroke_width: 1.5, radius: 1,
      }),
    ];
  }

  function bits() {
    const perBit = (right - left) / GRID.maxBits;
    const scaleBits = found.bitsPerWeight - settings.bits;
    const text =
      `${settings.bits} for the code, ${scaleBits.toFixed(2)} for the scale (hatched) · ` +
      `${formatBytes(found.bytes)}, ${formatBytes(scene.fp32_bytes * found.weights.length)} in fp32`;
    const fill = looks.weights;
    return [
      title(GRID.bitsBar - 10, `${found.bitsPerWeight.toFixed(2)} bits per weight`),
      small(left + 150, GRID.bitsBar - 10, text),
      rect(left, GRID.bitsBar, settings.bits * perBit, 12, { fill }),
      rect(left + settings.bits * perBit, GRID.bitsBar, scaleBits * perBit, 12, { fill, hatch: true }),
      ...[[0, "0"], [2, "2"], [4, "4"], [6, "6"], [8, "8 bits"]].map(
        ([at, label]) => small(left + at * perBit, GRID.bitsBar + 26, label, "middle"),
      ),
    ];
  }

  return [
    title(14, `Weights of block ${(shown + 1).toLocaleString("en-US")} of ${found.blocks.length.toLocaleString("en-US")}`),
    rect(330, 5, 10, 10, { fill: looks.weights }), small(345, 14, "this block"),
    rect(416, 5, 10, 10, { fill: "text", opacity: 0.16 }), small(431, 14, "all weights (separate scale)"),
    ...histogram(found.weights, "text", 0.16),
    ...histogram(block.weights, looks.weights, 1),
    ...codes(),
    small(left, 165, `−${limit.toFixed(2)}`), small(middle - half / 2, 165, `−${(limit / 2).toFixed(2)}`, "middle"),
    small(middle, 165, "weight 0", "middle"), small(middle + half / 2, 165, (limit / 2).toFixed(2), "middle"),
    small(right, 165, limit.toFixed(2), "end"),
    small(left, 182, "Ticks: the code points of this block. Faint: no weight of the block is rounded to it."),
    ...blocks(),
    ...bits(),
  ];
}
