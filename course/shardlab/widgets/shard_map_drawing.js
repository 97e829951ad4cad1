// Draws a ShardLayout. Returns the number of marks.

function drawShards(context, theme, layout) {
  const layers = layout.tensors.map(([name]) => layerOf(name));
  let drawn = drawLayers(context, theme, layout, layers);
  for (const buffer of BUFFERS) drawn += drawShardPanel(context, theme, layout, layers, buffer);
  return drawn;
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
function nameInLayer(name, layer) {
  return /\d$/.test(layer) && name.startsWith(`${layer}.`) ? name.slice(layer.length + 1) : name;
}

/** The model's layers, at the top: shard boundaries do not follow them. */
function drawLayers(context, theme, layout, layers) {
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
  for (const [name, ends] of extents) {
    const [x0, x1] = ends.map((end) => layout.toX(end));
    context.fillStyle = theme.muted;
    context.fillRect(x0 + 0.5, 17, Math.max(x1 - x0 - 1, 0.5), 2);
    const text = fittingName(name, x1 - x0 - 6);
    const look = { size: 11, anchor: "middle", fill: "muted" };
    if (text) paintText(context, { x: (x0 + x1) / 2, y: 12, text, ...look }, theme);
  }
  return extents.size;
}

function drawShardPanel(context, theme, layout, layers, buffer) {
  const { row, rows, gap, ranksPerRow, scene } = layout;
  const { left, right } = scene;
  const top = layout.topOf(buffer);
  const lookOf = (tensor) => scene.colors[tensor % scene.colors.length]; // its color, the text on it
  paintText(context, { x: left, y: top - 7, text: `${buffer} · ${layout.held(buffer)}`, weight: 600 }, theme);
  context.globalAlpha = 0.06;
  context.fillStyle = theme.text;
  context.fillRect(left, top, right - left, rows * row);
  context.globalAlpha = 1;
  const { spans, everywhere } = spansOf(layout.segments[buffer], rows, ranksPerRow);
  const paths = new Map(); // one fill for all pieces of a color
  const labels = [];
  let marks = 0;
  const place = ([start, end, tensor], y, height) => {
    const [x0, x1] = layout.boxOf(start, end);
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
    const name = layout.nameOf(tensor);
    const text = fittingName(tensor === PADDING ? name : nameInLayer(name, layers[tensor]), x1 - x0 - 8);
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

function drawSelectedShard(context, theme, layout, { buffer, rank, segment }) {
  const y = layout.topOf(buffer) + Math.floor(rank / layout.ranksPerRow) * layout.row;
  let [x0, x1] = [layout.scene.left, layout.scene.right];
  if (segment !== null) {
    const { at, numel } = layout.segments[buffer];
    [x0, x1] = layout.boxOf(at[segment], at[segment] + numel[segment]);
    const wider = Math.max(0, (6 - (x1 - x0)) / 2); // so that it is visible
    [x0, x1] = [x0 - wider, x1 + wider];
  }
  paintFocus(context, theme, x0, y, x1 - x0, layout.row);
}
