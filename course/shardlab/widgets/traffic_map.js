// The traffic map: marks and numbers come from traffic_map.py; this file has the selection. The mode that shows
// links of nodes is in traffic_links.js.

function build(model, signal) {
  const scene = model.get("scene");
  const n = scene.world_size;
  const nameOf = (rank) => rankName(scene, rank);
  const viewOf = (block) => scene.views.find((view) => view.block === block) ?? scene.views[0];
  let view = viewOf(model.get("block"));
  let selected = null; // { panel, row, column }; column n is the rank's bar
  const links = scene.links && trafficLinks(scene);
  let mode = model.get("mode"); // "ranks" or "links", which has another kind of selection
  const modes = choice({
    label: "Show", options: [["ranks", "bytes between ranks"], ["links", "links of nodes"]], value: mode, signal,
    onInput: (next) => {
      setMode(next);
      setTraits(model, { mode });
    },
  });

  const { root, sub, plot, stage, detail, small, refresh, mark } = frame({
    name: "traffic-map", title: "Bytes sent", scene, small: scene.source, draw, signal,
    label: "",
    headings: () => (mode === "links" ? links.headings : ["from rank", "to rank", "bytes"]),
    rows: () => (mode === "links" ? links.rows() : rows()),
    keys: () => (mode === "links" ? links.keys(selected, point) : keys()),
    point: (at) => point(at && (mode === "links" ? links.at(at) : cellAt(at))),
  });
  root.dataset.worldSize = n;
  const select = make("select", { "aria-label": "Part of the run" });
  for (const { block, title } of scene.views) select.append(make("option", { value: block }, title));
  sub.before(scene.views.length > 1 ? select : make("span", {}, view.title), ...(links ? [modes.node] : []));

  function show(next) {
    view = next;
    select.value = view.block;
    sub.textContent = `${formatBytes(view.total_bytes)} by ${plural(n, "rank")}${view.between}`;
    root.dataset.block = view.block;
    root.dataset.totalBytes = view.total_bytes;
    refresh(mode === "links" ? links.summary(view) : summary());
    point(selected);
  }

  function setMode(next) {
    mode = next;
    selected = null;
    modes.set(mode);
    root.dataset.mode = mode;
    const [title, label, hint, print] = mode === "links"
      ? [
          "Links of the nodes",
          "Links of the nodes. Up and down move between nodes and directions, left and right through time.",
          "Hover over a node or a moment, or use the arrow keys, for exact values.",
          `${scene.source}. ${scene.links.small}`,
        ]
      : [
          "Bytes sent",
          "Traffic map. Arrow keys move from cell to cell.",
          "Hover over a cell or a bar, or use the arrow keys, for its exact bytes.",
          scene.source,
        ];
    root.querySelector(".shardlab-title").textContent = title;
    plot.setAttribute("aria-label", label);
    detail.dataset.hint = hint;
    small.textContent = print;
    stage.resize(mode === "links" ? scene.links.height : scene.height);
    show(view);
  }

  function summary() {
    const sums = view.sent.map((row) => row.reduce((a, b) => a + b, 0));
    const bars = n <= 8 ? `: ${sums.map((sum, r) => `${nameOf(r)} ${formatBytes(sum)}`).join(", ")}` : "";
    return `Traffic map, ${view.title}. ${n} ranks sent ${exactBytes(view.total_bytes)}${view.between}${bars}.`;
  }

  function rows() {
    return view.sent.flatMap((row, from) =>
      row.map((bytes, to) => [from, to, bytes]).filter(([, , bytes]) => bytes > 0),
    );
  }

  function describe(cell) {
    if (mode === "links") {
      const { text, values } = links.describe(view, cell);
      const place = [cell.node, ...(cell.way ? [cell.way, cell.index] : [])];
      return { text, values: { selected: place.join(","), ...values } };
    }
    const [selectedBytes, text] = describeCell(cell);
    const column = cell.column === n ? "total" : cell.column;
    return { text, values: { selected: `${cell.row},${column}`, selectedBytes } };
  }

  function describeCell({ row, column }) {
    if (column === n) {
      const sent = view.sent[row].reduce((a, b) => a + b, 0);
      const received = view.sent.reduce((sum, from) => sum + from[row], 0);
      const guess = view.predicted?.[row];
      const predicted = Array.isArray(guess) ? guess.reduce((a, b) => a + b, 0) : guess;
      const prediction = predicted === undefined ? "" : `; predicted ${exactBytes(predicted)}`;
      return [sent, `${nameOf(row)} sent ${exactBytes(sent)}${prediction}; received ${exactBytes(received)}`];
    }
    const bytes = view.sent[row][column];
    if (row === column) return [bytes, `rank ${row} does not send to itself`];
    const guess = view.predicted?.[row];
    const predicted = Array.isArray(guess) ? guess[column] : undefined;
    const prediction = predicted === undefined ? "" : `; predicted ${exactBytes(predicted)}`;
    return [bytes, `${nameOf(row)} → ${nameOf(column)}: ${exactBytes(bytes)}${prediction}`];
  }

  function point(cell) {
    selected = cell;
    if (!cell) return mark("");
    const { text, values } = describe(cell);
    mark(text, values);
  }

  function draw(context, theme) {
    if (mode === "links") return links.draw(context, theme, view, selected);
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
  onTraits(model, ["mode"], () => model.get("mode") === mode || setMode(model.get("mode")), signal);

  setMode(mode);
  return root;
}

export default widget(build, "traffic-map");
