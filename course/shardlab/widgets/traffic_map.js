// The traffic map: marks and numbers come from traffic_map.py; this file has the selection.

function build(model, signal) {
  const scene = model.get("scene");
  const n = scene.world_size;
  const viewOf = (block) => scene.views.find((view) => view.block === block) ?? scene.views[0];
  let view = viewOf(model.get("block"));
  let selected = null; // { panel, row, column }; column n is the rank's bar

  const { root, sub, refresh, mark } = frame({
    name: "traffic-map", title: "Bytes sent", scene, small: scene.source, draw, keys, signal,
    label: "Traffic map. Arrow keys move from cell to cell.",
    hint: "Hover over a cell or a bar, or use the arrow keys, for its exact bytes.",
    headings: () => ["from rank", "to rank", "bytes"], rows,
    point: (at) => point(at && cellAt(at)),
  });
  root.dataset.worldSize = n;
  const select = make("select", { "aria-label": "Part of the run" });
  for (const { block, title } of scene.views) select.append(make("option", { value: block }, title));
  sub.before(scene.views.length > 1 ? select : make("span", {}, view.title));

  function show(next) {
    view = next;
    select.value = view.block;
    sub.textContent = `${formatBytes(view.total_bytes)} by ${plural(n, "rank")}`;
    root.dataset.block = view.block;
    root.dataset.totalBytes = view.total_bytes;
    refresh(summary());
    point(selected);
  }

  function summary() {
    const sums = view.sent.map((row) => row.reduce((a, b) => a + b, 0));
    const bars = n <= 8 ? `: ${sums.map((sum, r) => `rank ${r} ${formatBytes(sum)}`).join(", ")}` : "";
    return `Traffic map, ${view.title}. ${n} ranks sent ${exactBytes(view.total_bytes)}${bars}.`;
  }

  function rows() {
    return view.sent.flatMap((row, from) =>
      row.map((bytes, to) => [from, to, bytes]).filter(([, , bytes]) => bytes > 0),
    );
  }

  function describe({ row, column }) {
    if (column === n) {
      const sent = view.sent[row].reduce((a, b) => a + b, 0);
      const received = view.sent.reduce((sum, from) => sum + from[row], 0);
      const guess = view.predicted?.[row];
      const predicted = Array.isArray(guess) ? guess.reduce((a, b) => a + b, 0) : guess;
      const prediction = predicted === undefined ? "" : `; predicted ${exactBytes(predicted)}`;
      return [sent, `rank ${row} sent ${exactBytes(sent)}${prediction}; received ${exactBytes(received)}`];
    }
    const bytes = view.sent[row][column];
    if (row === column) return [bytes, `rank ${row} does not send to itself`];
    const guess = view.predicted?.[row];
    const predicted = Array.isArray(guess) ? guess[column] : undefined;
    const prediction = predicted === undefined ? "" : `; predicted ${exactBytes(predicted)}`;
    return [bytes, `rank ${row} → rank ${column}: ${exactBytes(bytes)}${prediction}`];
  }

  function point(cell) {
    selected = cell;
    if (!cell) return mark("");
    const [selectedBytes, text] = describe(cell);
    mark(text, { selected: `${cell.row},${cell.column === n ? "total" : cell.column}`, selectedBytes });
  }

  function draw(context, theme) {
    const drawn = paint(context, view.marks, theme);
    if (!selected) return drawn;
    const { panel, row, column } = selected;
    const { top, cell } = scene;
    if (column === n) {
      paintFocus(context, theme, scene.bars_x - 3, top + row * cell, scene.width - scene.bars_x, cell);
    } else {
      paintFocus(context, theme, scene.heat_x[panel] + column * cell, top + row * cell, cell, cell);
    }
    return drawn + 1;
  }

  function cellAt({ x, y }) {
    const row = Math.floor((y - scene.top) / scene.cell);
    if (row < 0 || row >= n) return null;
    for (const [panel, left] of scene.heat_x.entries()) {
      const column = Math.floor((x - left) / scene.cell);
      if (column >= 0 && column < n) return { panel, row, column };
    }
    return x >= scene.bars_x ? { panel: 0, row, column: n } : null;
  }

  function keys() {
    const { panel, row, column } = selected ?? { panel: scene.heat_x.length - 1, row: 0, column: -1 };
    const to = (nextRow, nextColumn) =>
      point({ panel, row: clamp(nextRow, 0, n - 1), column: clamp(nextColumn, 0, n) });
    return {
      ArrowLeft: () => to(row, selected ? column - 1 : 0),
      ArrowRight: () => to(row, column + 1),
      ArrowUp: () => to(row - 1, Math.max(column, 0)),
      ArrowDown: () => to(selected ? row + 1 : 0, Math.max(column, 0)),
      Home: () => to(row, 0),
      End: () => to(row, n),
      Escape: () => point(null),
    };
  }

  select.addEventListener(
    "change",
    () => {
      show(viewOf(select.value));
      setTraits(model, { block: view.block });
    },
    { signal },
  );
  onTraits(model, ["block"], () => show(viewOf(model.get("block"))), signal);

  show(view);
  return root;
}

export default widget(build);
