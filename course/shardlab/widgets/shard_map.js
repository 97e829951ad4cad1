// The shard map: rows of ranks, drawn like shard_map.py's Geometry. A layout from a formula is
// recomputed here, by shard_formula.js, for the chosen stage and number of ranks.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right } = scene;
  let settings = { ...model.get("settings") };
  let view = null; // of scene.views
  let layout = null; // { worldSize, length, segments, ranksPerRow, rows, row, gap, scale }
  let selected = null; // { buffer, rank, segment }: segment is null where nothing is held
  let layers = []; // for each tensor, its layer
  let drawn = null; // the picture without the selection, kept until it changes

  const { root, head, plot, detail } = card({
    name: "shard-map", title: "What each rank holds",
    label:
      "Shard map. Up and down move from rank to rank, left and right from piece to piece, Page Up and Page Down from buffer to buffer.",
    hint: "Hover over a piece, or use the arrow keys, for its tensor, slice, bytes and rank.",
  });
  const sub = make("span", { class: "shardlab-sub" });
  head.append(sub);
  const source = make("p", { class: "shardlab-note" });
  const panel = make("div", { class: "shardlab-settings" });
  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const small = make("p", { class: "shardlab-small" });
  const headings = () => ["buffer", "rank", "tensor", "from", "to", "bytes"];
  const table = tableDetails(headings, tableRows, signal);
  root.append(head, stickyControls(panel), source, plot, detail, small, table.node);

  const change = (changes) => {
    show({ ...settings, ...changes });
    setTraits(model, { settings });
  };
  const views = choice({
    label: "layout", options: scene.views.map(({ title }) => [title, title]), value: settings.view,
    signal, onInput: (title) => change(startOf(title)),
  });
  const stages = choice({
    label: "ZeRO stage", options: [0, 1, 2, 3].map((s) => [s, String(s)]), value: settings.stage,
    signal, onInput: (value) => change({ stage: Number(value) }),
  });
  const ranks = listSlider({
    label: "N ranks", values: scene.world_sizes, value: settings.worldSize, signal,
    onInput: (worldSize) => change({ worldSize }),
  });
  if (scene.views.length > 1) panel.append(views.node);
  panel.append(stages.node, ranks.node);

  function startOf(title) {
    const { stage: given, world_size: worldSize } = scene.views.find((each) => each.title === title);
    return { view: title, stage: given, worldSize };
  }

  // ---- the layout ----

  function show(next) {
    settings = next;
    view = scene.views.find(({ title }) => title === settings.view) ?? scene.views[0];
    const byFormula = view.recipe !== null;
    views.set(view.title);
    stages.node.hidden = ranks.node.hidden = !byFormula;
    panel.hidden = !byFormula && scene.views.length === 1;
    let made;
    if (byFormula) {
      stages.set(settings.stage);
      ranks.set(settings.worldSize);
      made = flatLayout(view.recipe, settings.stage, settings.worldSize);
    } else {
      const segments = Object.fromEntries(
        BUFFERS.map((buffer) => [buffer, asColumns(view.segments[buffer])]),
      );
      made = { length: view.length, segments };
    }
    const n = byFormula ? settings.worldSize : view.world_size;
    const ranksPerRow = Math.max(1, Math.ceil((n * scene.min_row_height) / scene.panel));
    const rows = Math.ceil(n / ranksPerRow);
    const row = Math.min(scene.max_row_height, scene.panel / rows);
    layout = {
      ...made, n, ranksPerRow, rows, row, gap: row >= 8 ? 2 : row >= 5 ? 1 : 0,
      scale: (right - left) / Math.max(made.length, 1),
      bytes: Object.fromEntries(BUFFERS.map((b) => [b, bytesByRank(made.segments[b], n)])),
    };
    drawn = null;
    layers = view.tensors.map(([name]) => layerOf(name));
    Object.assign(root.dataset, {
      worldSize: n, stage: byFormula ? settings.stage : (view.stage ?? ""), tensors: view.tensors.length,
      source: byFormula ? "formula" : view.source, view: view.title, ranksPerRow, length: made.length,
      segments: BUFFERS.reduce((sum, b) => sum + made.segments[b].count, 0),
    });
    for (const buffer of BUFFERS) {
      root.dataset[`${buffer}Bytes`] = Math.max(...layout.bytes[buffer]);
    }
    const elements = view.tensors.reduce((sum, [, numel]) => sum + numel, 0);
    sub.textContent = [
      plural(view.tensors.length, "tensor"), `${formatCount(elements)} elements`, plural(n, "rank"),
    ].join(", ");
    source.textContent = byFormula ? howCut() : `Read from a run: ${view.source}.`;
    small.textContent =
      ranksPerRow > 1 ? `Each row stands for ${ranksPerRow} ranks and shows what any of them holds.` : "";
    stage.canvas.setAttribute("aria-label", summary());
    table.refresh();
    point(null);
  }

  function howCut() {
    const how = view.recipe.cut ?? (settings.stage === 3 ? "tensor" : "flat");
    if (settings.stage === 0 || layout.n === 1) return "By formula: every rank holds everything.";
    const words = {
      flat: "all tensors in one flat buffer, split into equal shards; a boundary may fall inside a tensor",
      tensor: "each tensor flattened and split into equal shards",
      rows: "each tensor split along its first dimension",
    };
    return `By formula: ${words[how]}.`;
  }

  function bytesByRank({ count, rank, bytes }, n) {
    const sums = new Float64Array(n);
    let everywhere = 0;
    for (let index = 0; index < count; index += 1) {
      if (rank[index] === EVERY_RANK) everywhere += bytes[index];
      else sums[rank[index]] += bytes[index];
    }
    return sums.map((sum) => sum + everywhere);
  }

  function held(buffer) {
    const smallest = formatBytes(layout.bytes[buffer].reduce((a, b) => Math.min(a, b)));
    const largest = formatBytes(layout.bytes[buffer].reduce((a, b) => Math.max(a, b)));
    if (largest === "0 B") return "none";
    return smallest === largest ? `${largest} on each rank` : `${smallest} to ${largest} per rank`;
  }

  function summary() {
    const sizes = BUFFERS.map((buffer) => `${buffer} ${held(buffer)}`).join("; ");
    return `Shard map of ${sub.textContent}. ${source.textContent} ${sizes}.`;
  }

  function nameOf(tensor) {
    return tensor === PADDING ? "padding" : view.tensors[tensor][0];
  }

  /** Only the first 500: 1024 ranks would have hundreds of thousands. */
  function tableRows() {
    const rows = [];
    let total = 0;
    for (const buffer of BUFFERS) {
      const { count, rank, tensor, start, numel, bytes } = layout.segments[buffer];
      total += count;
      for (let index = 0; index < count && rows.length < 500; index += 1) {
        const whose = rank[index] === EVERY_RANK ? "every rank" : rank[index];
        rows.push([
          buffer, whose, nameOf(tensor[index]), start[index], start[index] + numel[index],
          bytes[index].toLocaleString("en-US"),
        ]);
      }
    }
    rows.length = total;
    return rows;
  }

  // ---- drawing ----

  const topOf = (buffer) =>
    scene.top + scene.heading + BUFFERS.indexOf(buffer) * (scene.heading + scene.panel + 8);
  const xOf = (at) => left + at * layout.scale;
  const lookOf = (tensor) => scene.colors[tensor % scene.colors.length]; // its color, the text on it

  /** Anything thinner than a pixel fills the pixel in which it starts. */
  function boxOf(start, end) {
    const [x0, x1] = [xOf(start), xOf(end)];
    if (x1 - x0 >= 1) return [x0, x1];
    const floor = Math.min(Math.floor(x0), right - 1);
    return [floor, floor + 1];
  }

  /** As many of a dotted name's last parts as fit: "mlp.up" of "blocks.3.mlp.up.weight". */
  function fittingName(name, room) {
    const parts = name.replace(/\.weight$/, "").split(".");
    const minParts = parts.at(-1) === "bias" && parts.length > 1 ? 2 : 1; // "bias" alone is ambiguous
    for (let first = 0; first <= parts.length - minParts; first += 1) {
      const text = parts.slice(first).join(".");
      if (0.58 * 11 * text.length <= room) return text;
    }
    return "";
  }

  /** The layer that a tensor belongs to: "blocks.3" of "blocks.3.mlp.up.weight". */
  function layerOf(name) {
    const parts = name.split(".");
    const numbered = parts.findIndex((part) => /^\d+$/.test(part));
    return parts.slice(0, numbered < 0 ? 1 : numbered + 1).join(".");
  }

  /** "mlp.up.weight" of "blocks.3.mlp.up.weight": the layer's name is at the top. */
  function nameInLayer(tensor) {
    const name = nameOf(tensor);
    const layer = layers[tensor];
    return /\d$/.test(layer) && name.startsWith(`${layer}.`) ? name.slice(layer.length + 1) : name;
  }

  function draw(context, theme) {
    const key = JSON.stringify([context.canvas.width, context.canvas.height, theme]);
    if (drawn?.key !== key) drawn = { key, ...picture(context, theme) };
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(drawn.image, 0, 0);
    context.restore();
    if (selected) {
      const { buffer, rank, segment } = selected;
      const y = topOf(buffer) + Math.floor(rank / layout.ranksPerRow) * layout.row;
      let [x0, x1] = [left, right];
      if (segment !== null) {
        const { at, numel } = layout.segments[buffer];
        [x0, x1] = boxOf(at[segment], at[segment] + numel[segment]);
        const wider = Math.max(0, (6 - (x1 - x0)) / 2); // so that it is visible
        [x0, x1] = [x0 - wider, x1 + wider];
      }
      paintFocus(context, theme, x0, y, x1 - x0, layout.row);
    }
    return drawn.marks;
  }

  function picture({ canvas }, theme) {
    const image = new OffscreenCanvas(canvas.width, canvas.height);
    const context = image.getContext("2d");
    const scale = canvas.width / scene.width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    let marks = drawPartNames(context, theme);
    for (const buffer of BUFFERS) marks += drawPanel(context, theme, buffer);
    return { image, marks };
  }

  /** The model's parts, at the top: shard boundaries do not follow them. */
  function drawPartNames(context, theme) {
    const extents = new Map();
    for (const buffer of BUFFERS) {
      const { count, tensor, at, numel } = layout.segments[buffer];
      for (let index = 0; index < count; index += 1) {
        if (tensor[index] === PADDING) continue;
        const name = layers[tensor[index]];
        const end = at[index] + numel[index];
        const known = extents.get(name);
        if (!known) extents.set(name, [at[index], end]);
        else [known[0], known[1]] = [Math.min(known[0], at[index]), Math.max(known[1], end)];
      }
    }
    for (const [name, [start, end]] of extents) {
      const [x0, x1] = [xOf(start), xOf(end)];
      context.fillStyle = theme.muted;
      context.fillRect(x0 + 0.5, 17, Math.max(x1 - x0 - 1, 0.5), 2);
      const text = fittingName(name, x1 - x0 - 6);
      const look = { size: 11, anchor: "middle", fill: "muted" };
      if (text) paintText(context, { x: (x0 + x1) / 2, y: 12, text, ...look }, theme);
    }
    return extents.size;
  }

  function drawPanel(context, theme, buffer) {
    const top = topOf(buffer);
    const { row, rows, gap, ranksPerRow } = layout;
    paintText(context, { x: left, y: top - 7, text: `${buffer} · ${held(buffer)}`, weight: 600 }, theme);
    context.globalAlpha = 0.06;
    context.fillStyle = theme.text;
    context.fillRect(left, top, right - left, rows * row);
    context.globalAlpha = 1;
    const { spans, everywhere } = spansOf(layout.segments[buffer], rows, ranksPerRow);
    const paths = new Map(); // one fill for all pieces of a color
    const labels = [];
    let marks = 0;
    const place = ([start, end, tensor], y, height) => {
      const [x0, x1] = boxOf(start, end);
      const color = tensor === PADDING ? "padding" : lookOf(tensor)[0];
      if (!paths.has(color)) paths.set(color, new Path2D());
      paths.get(color).rect(x0, y, x1 - x0, height);
      marks += 1;
      if (row >= 15) labels.push([tensor, x0, x1, y + height / 2 + 4]);
    };
    for (let index = 0; index < rows; index += 1) {
      const y = top + index * row + gap / 2;
      for (const span of spans[index]) place(span, y, row - gap);
      if (gap) for (const span of everywhere) place(span, y, row - gap);
    }
    if (!gap) for (const span of everywhere) place(span, top, rows * row);
    for (const [color, path] of paths) {
      context.fillStyle = color === "padding" ? hatch(context, scene.padding_color) : color;
      context.fill(path);
    }
    for (const [tensor, x0, x1, y] of labels) {
      const text = fittingName(tensor === PADDING ? "padding" : nameInLayer(tensor), x1 - x0 - 8);
      const fill = tensor === PADDING ? "text" : lookOf(tensor)[1];
      if (text) paintText(context, { x: (x0 + x1) / 2, y, text, size: 11, anchor: "middle", fill }, theme);
    }
    const every = Math.max(1, Math.ceil(13 / row));
    for (let index = 0; index < rows; index += every) {
      const y = top + (index + 0.5) * row + 4;
      paintText(context, { x: left - 8, y, text: `rank ${index * ranksPerRow}`, size: 11, anchor: "end" }, theme);
    }
    return marks;
  }

  // ---- the selection ----

  /** Indices of the pieces of a buffer that a rank holds, from left to right. */
  function piecesOf(buffer, rank) {
    const own = layout.segments[buffer].rank;
    const found = [];
    for (let index = 0; index < own.length; index += 1) {
      if (own[index] === rank || own[index] === EVERY_RANK) found.push(index);
    }
    return found;
  }

  function describe({ buffer, rank, segment }) {
    if (segment === null) return `rank ${rank} · ${buffer} · nothing here`;
    const { start, numel, tensor, rank: owner, bytes } = layout.segments[buffer];
    const whose = owner[segment] === EVERY_RANK && layout.n > 1 ? `rank ${rank}, like every rank` : `rank ${rank}`;
    const count = (value) => value.toLocaleString("en-US");
    const size = exactBytes(bytes[segment]);
    if (tensor[segment] === PADDING) {
      return `${whose} · ${buffer} · padding: ${plural(numel[segment], "element")} · ${size}`;
    }
    const [name, whole] = view.tensors[tensor[segment]];
    const end = start[segment] + numel[segment];
    const slice = numel[segment] === whole ? `all of its ${plural(whole, "element")}` : `elements ${count(start[segment])} to ${count(end)} of ${count(whole)}`;
    return `${whose} · ${buffer} · ${name} · ${slice} · ${size}`;
  }

  function point(at) {
    selected = at;
    for (const name of ["selected", "selectedBuffer", "selectedRank", "selectedTensor", "selectedStart", "selectedStop", "selectedBytes"]) {
      delete root.dataset[name];
    }
    detail.textContent = "";
    if (at) {
      const { buffer, rank, segment } = at;
      detail.textContent = describe(at);
      Object.assign(root.dataset, { selectedBuffer: buffer, selectedRank: rank });
      if (segment !== null) {
        const { start, numel, tensor, bytes } = layout.segments[buffer];
        Object.assign(root.dataset, {
          selected: `${buffer}:${rank}:${nameOf(tensor[segment])}`,
          selectedTensor: nameOf(tensor[segment]), selectedStart: start[segment],
          selectedStop: start[segment] + numel[segment], selectedBytes: bytes[segment],
        });
      }
    }
    stage.redraw();
  }

  function pieceAt({ x, y }) {
    const buffer = BUFFERS.find((name) => {
      const top = topOf(name);
      return y >= top && y < top + layout.rows * layout.row;
    });
    if (!buffer || x < left || x >= right) return null;
    const row = Math.floor((y - topOf(buffer)) / layout.row);
    const first = row * layout.ranksPerRow;
    const last = Math.min(first + layout.ranksPerRow, layout.n) - 1;
    const { count, at, numel, rank } = layout.segments[buffer];
    const place = (x - left) / layout.scale;
    const pixel = 1 / layout.scale;
    let best = null;
    let gap = pixel; // thin pieces fill a pixel, so they are hit within one
    for (let index = 0; index < count; index += 1) {
      if (rank[index] !== EVERY_RANK && (rank[index] < first || rank[index] > last)) continue;
      const off = Math.max(at[index] - place, place - at[index] - numel[index], 0);
      if (off < gap || (off === 0 && best === null)) [best, gap] = [index, off];
      if (gap === 0) break;
    }
    if (best === null) return { buffer, rank: first, segment: null };
    return { buffer, rank: rank[best] === EVERY_RANK ? first : rank[best], segment: best };
  }

  /** Selects, on another rank or buffer, the piece nearest to the selected one. */
  function goTo(buffer, rank) {
    const pieces = piecesOf(buffer, rank);
    if (!pieces.length) return point({ buffer, rank, segment: null });
    const { at, numel } = layout.segments[buffer];
    let place = 0;
    if (selected && selected.segment !== null) place = layout.segments[selected.buffer].at[selected.segment];
    const off = (index) => Math.max(at[index] - place, place - at[index] - numel[index] + 1, 0);
    point({ buffer, rank, segment: pieces.reduce((a, b) => (off(b) < off(a) ? b : a)) });
  }

  function step(by) {
    const { buffer, rank, segment } = selected;
    const pieces = piecesOf(buffer, rank);
    if (!pieces.length) return;
    const place = clamp(pieces.indexOf(segment) + by, 0, pieces.length - 1);
    point({ buffer, rank, segment: pieces[place] });
  }

  function keys() {
    const { buffer, rank } = selected ?? { buffer: BUFFERS[0], rank: 0 };
    const panelAt = (by) => BUFFERS[clamp(BUFFERS.indexOf(buffer) + by, 0, BUFFERS.length - 1)];
    return {
      ArrowUp: () => goTo(buffer, Math.max(rank - 1, 0)),
      ArrowDown: () => goTo(buffer, selected ? Math.min(rank + 1, layout.n - 1) : 0),
      ArrowLeft: () => (selected ? step(-1) : goTo(buffer, rank)),
      ArrowRight: () => (selected ? step(1) : goTo(buffer, rank)),
      PageUp: () => goTo(panelAt(-1), rank),
      PageDown: () => goTo(panelAt(selected ? 1 : 0), rank),
      Home: () => goTo(buffer, 0),
      End: () => goTo(buffer, layout.n - 1),
      Escape: () => point(null),
    };
  }

  handlePointer(plot, stage, (at) => point(at && pieceAt(at)), signal);
  handleKeys(plot, keys, signal);
  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

export default widget(build);
