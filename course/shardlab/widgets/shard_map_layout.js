// Which piece is where on the shard map, like shard_map.py's Geometry: one panel of rows for each buffer,
// and one row for each rank or group of ranks. A layout from a formula is computed by shard_formula.js.

class ShardLayout {
  constructor(scene, view, { stage, worldSize }) {
    const isFormula = view.recipe !== null;
    const { length, segments } = isFormula
      ? flatLayout(view.recipe, stage, worldSize)
      : { length: view.length, segments: fromBuffers((buffer) => asColumns(view.segments[buffer])) };
    const n = isFormula ? worldSize : view.world_size;
    const ranksPerRow = Math.max(1, Math.ceil((n * scene.min_row_height) / scene.panel));
    const rows = Math.ceil(n / ranksPerRow);
    const row = Math.min(scene.max_row_height, scene.panel / rows);
    Object.assign(this, {
      scene, tensors: view.tensors, length, segments, n, ranksPerRow, rows, row,
      gap: row >= 8 ? 2 : row >= 5 ? 1 : 0,
      scale: (scene.right - scene.left) / Math.max(length, 1),
      bytes: fromBuffers((buffer) => bytesByRank(segments[buffer], n)),
    });
  }

  nameOf(tensor) {
    return tensor === PADDING ? "padding" : this.tensors[tensor][0];
  }

  held(buffer) {
    const smallest = formatBytes(Math.min(...this.bytes[buffer]));
    const largest = formatBytes(Math.max(...this.bytes[buffer]));
    if (largest === "0 B") return "none";
    return smallest === largest ? `${largest} on each rank` : `${smallest} to ${largest} per rank`;
  }

  topOf(buffer) {
    const { top, heading, panel } = this.scene;
    return top + heading + BUFFERS.indexOf(buffer) * (heading + panel + 8);
  }

  toX(at) {
    return this.scene.left + at * this.scale;
  }

  /** Anything thinner than a pixel fills the pixel in which it starts. */
  boxOf(start, end) {
    const [x0, x1] = [this.toX(start), this.toX(end)];
    if (x1 - x0 >= 1) return [x0, x1];
    const floor = Math.min(Math.floor(x0), this.scene.right - 1);
    return [floor, floor + 1];
  }

  /** The indices of the pieces of a buffer that a rank holds, from left to right. */
  piecesOf(buffer, rank) {
    const own = this.segments[buffer].rank;
    const found = [];
    for (let index = 0; index < own.length; index += 1) {
      if (own[index] === rank || own[index] === EVERY_RANK) found.push(index);
    }
    return found;
  }

  /** { buffer, rank, segment } at a point, or null; segment is null where nothing is held. */
  pieceAt({ x, y }) {
    const { left, right } = this.scene;
    const buffer = BUFFERS.find((name) => y >= this.topOf(name) && y < this.topOf(name) + this.rows * this.row);
    if (!buffer || x < left || x >= right) return null;
    const first = Math.floor((y - this.topOf(buffer)) / this.row) * this.ranksPerRow;
    const last = Math.min(first + this.ranksPerRow, this.n) - 1;
    const { count, at, numel, rank } = this.segments[buffer];
    const place = (x - left) / this.scale;
    let best = null;
    let gap = 1 / this.scale; // thin pieces fill a pixel, so they are hit within one
    for (let index = 0; index < count; index += 1) {
      if (rank[index] !== EVERY_RANK && (rank[index] < first || rank[index] > last)) continue;
      const off = Math.max(at[index] - place, place - at[index] - numel[index], 0);
      if (off < gap || (off === 0 && best === null)) [best, gap] = [index, off];
      if (gap === 0) break;
    }
    const isEverywhere = best === null || rank[best] === EVERY_RANK;
    return { buffer, rank: isEverywhere ? first : rank[best], segment: best };
  }

  /** The piece of this rank and buffer that is nearest to another piece, or to the start. */
  nearest(buffer, rank, other) {
    const { at, numel } = this.segments[buffer];
    const place = other && other.segment !== null ? this.segments[other.buffer].at[other.segment] : 0;
    const off = (index) => Math.max(at[index] - place, place - at[index] - numel[index] + 1, 0);
    const pieces = this.piecesOf(buffer, rank);
    return pieces.length ? pieces.reduce((a, b) => (off(b) < off(a) ? b : a)) : null;
  }

  /** [a piece in words, its values] */
  describe({ buffer, rank, segment }) {
    const place = { selectedBuffer: buffer, selectedRank: rank };
    if (segment === null) return [`rank ${rank} · ${buffer} · nothing here`, place];
    const [start, numel, tensor, owner, bytes] = ["start", "numel", "tensor", "rank", "bytes"].map(
      (column) => this.segments[buffer][column][segment],
    );
    const name = this.nameOf(tensor);
    const whole = this.tensors[tensor]?.[1];
    const [from, to, all] = [start, start + numel, whole].map((value) => value?.toLocaleString("en-US"));
    const what = tensor === PADDING
      ? `padding: ${plural(numel, "element")}`
      : `${name} · ${numel === whole ? `all of its ${plural(whole, "element")}` : `elements ${from} to ${to} of ${all}`}`;
    const whose = `rank ${rank}${owner === EVERY_RANK && this.n > 1 ? ", like every rank" : ""}`;
    return [`${whose} · ${buffer} · ${what} · ${exactBytes(bytes)}`, {
      ...place, selected: `${buffer}:${rank}:${name}`, selectedTensor: name, selectedStart: start,
      selectedStop: start + numel, selectedBytes: bytes,
    }];
  }

  /** Only the first 500 have contents: 1024 ranks would have hundreds of thousands. */
  tableRows() {
    const rows = [];
    for (const buffer of BUFFERS) {
      const { count, rank, tensor, start, numel, bytes } = this.segments[buffer];
      for (let index = 0; index < count && rows.length < 500; index += 1) {
        rows.push([
          buffer, rank[index] === EVERY_RANK ? "every rank" : rank[index], this.nameOf(tensor[index]), start[index],
          start[index] + numel[index], bytes[index].toLocaleString("en-US"),
        ]);
      }
    }
    rows.length = this.pieces();
    return rows;
  }

  pieces() {
    return BUFFERS.reduce((sum, buffer) => sum + this.segments[buffer].count, 0);
  }
}

const fromBuffers = (of) => Object.fromEntries(BUFFERS.map((buffer) => [buffer, of(buffer)]));

function bytesByRank({ count, rank, bytes }, n) {
  const sums = new Float64Array(n);
  let everywhere = 0;
  for (let index = 0; index < count; index += 1) {
    if (rank[index] === EVERY_RANK) everywhere += bytes[index];
    else sums[rank[index]] += bytes[index];
  }
  return sums.map((sum) => sum + everywhere);
}
