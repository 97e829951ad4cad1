// The formula of shards/formula.py, so that choosing a stage needs no kernel; a test compares the
// two with random sizes. Segments are stored by column, as stage 3 has many with 1024 ranks.

const BUFFERS = ["parameters", "gradients", "optimizer"];
const FIRST_CUT_AT = { optimizer: 1, gradients: 2, parameters: 3 };
const EVERY_RANK = -1;
const PADDING = -1;

/** rows: [[at, numel, tensor, start, rank, bytes], ...] */
function asColumns(rows) {
  const column = (index) => Float64Array.from(rows, (row) => row[index]);
  const [at, numel, tensor, start, rank, bytes] = [0, 1, 2, 3, 4, 5].map(column);
  return { count: rows.length, at, numel, tensor, start, rank, bytes };
}

/** { length, segments: { buffer: columns } } of a recipe: see Layout.recipe. */
function flatLayout({ shapes, cut, alignment, element_bytes: size }, stage, worldSize) {
  const numels = shapes.map((shape) => shape.reduce((a, b) => a * b, 1));
  const how = cut ?? (stage === 3 ? "tensor" : "flat");
  const units =
    how === "flat"
      ? [[numels.map((_, index) => index), alignment]]
      : shapes.map((shape, index) => [
          [index], how === "rows" ? shape.slice(1).reduce((a, b) => a * b, 1) : 1,
        ]);
  const shared = cutAll(numels, units, worldSize, stage);
  const length = shared.reduce((sum, part) => sum + part[1], 0);
  const whole = join(shared);
  const segments = {};
  for (const buffer of BUFFERS) {
    const each = size[buffer];
    if (!each) segments[buffer] = asColumns([]);
    else if (stage >= FIRST_CUT_AT[buffer]) {
      segments[buffer] = asColumns(shared.map((part) => [...part, part[1] * each]));
    } else {
      const held = whole.filter(([, , tensor]) => buffer === "parameters" || tensor !== PADDING);
      segments[buffer] = asColumns(
        held.map(([at, numel, tensor]) => [at, numel, tensor, 0, EVERY_RANK, numel * each]),
      );
    }
  }
  return { length, segments };
}

function cutAll(numels, units, worldSize, stage) {
  const parts = [];
  let at = 0;
  for (const [indices, grain] of units) {
    const total = indices.reduce((sum, index) => sum + numels[index], 0);
    const share = stage ? Math.ceil(total / (worldSize * grain)) * grain : total;
    const padding = stage ? share * worldSize - total : 0;
    const base = at;
    for (const index of [...indices, PADDING]) {
      const numel = index === PADDING ? padding : numels[index];
      for (let start = 0; start < numel; ) {
        const rank = Math.floor((at - base) / share);
        const step = Math.min(numel - start, base + (rank + 1) * share - at);
        parts.push([at, step, index, index === PADDING ? 0 : start, rank]);
        at += step;
        start += step;
      }
    }
  }
  return parts;
}

function join(parts) {
  const whole = [];
  for (const [at, numel, tensor, start] of parts) {
    const last = whole.at(-1);
    if (last && last[2] === tensor && (start || tensor === PADDING)) last[1] += numel;
    else whole.push([at, numel, tensor]);
  }
  return whole;
}

/**
 * Spans to draw: rows of several ranks, each with spans [from, to, tensor] in elements. Adjacent
 * pieces of one tensor are one span, even if different ranks of a row hold them.
 */
function spansOf({ count, at, numel, tensor, rank }, rows, ranksPerRow) {
  const spans = Array.from({ length: rows }, () => []);
  const everywhere = [];
  for (let index = 0; index < count; index += 1) {
    const row = rank[index] === EVERY_RANK ? everywhere : spans[Math.floor(rank[index] / ranksPerRow)];
    const last = row.at(-1);
    const end = at[index] + numel[index];
    if (last && last[2] === tensor[index] && at[index] <= last[1]) last[1] = Math.max(last[1], end);
    else row.push([at[index], end, tensor[index]]);
  }
  return { spans, everywhere };
}
