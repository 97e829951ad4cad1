// The shard map: this file has the controls and the selected piece. A layout from a formula is computed
// again here, for the chosen stage and number of ranks.

const SHARD_CUTS = {
  flat: "all tensors in one flat buffer, split into equal shards; a boundary may fall inside a tensor",
  tensor: "each tensor flattened and split into equal shards",
  rows: "each tensor split along its first dimension",
};

function build(model, signal) {
  const scene = model.get("scene");
  let settings = { ...model.get("settings") };
  let layout = null;
  let picture = null; // the layout, drawn
  let selected = null; // { buffer, rank, segment }: segment is null where nothing is held

  const change = (changes) => {
    show({ ...settings, ...changes });
    setTraits(model, { settings });
  };
  const viewOf = (name) => scene.views.find(({ title }) => title === name);
  const views = choice({
    label: "layout", options: scene.views.map(({ title }) => [title, title]), value: settings.view, signal,
    onInput: (title) => change({ view: title, stage: viewOf(title).stage, worldSize: viewOf(title).world_size }),
  });
  const stages = choice({
    label: "ZeRO stage", options: [0, 1, 2, 3].map((s) => [s, String(s)]), value: settings.stage,
    signal, onInput: (value) => change({ stage: Number(value) }),
  });
  const ranks = listSlider({
    label: "N ranks", values: scene.world_sizes, value: settings.worldSize, signal,
    onInput: (worldSize) => change({ worldSize }),
  });
  const nodes = [...(scene.views.length > 1 ? [views.node] : []), stages.node, ranks.node];
  const panel = make("div", { class: "shardlab-settings" }, ...nodes);
  const source = make("p", { class: "shardlab-note" });
  const { root, sub, small, refresh, mark } = frame({
    name: "shard-map", title: "What each rank holds", scene, controls: [panel], above: [source], small: "", keys, signal,
    label:
      "Shard map. Up and down move from rank to rank, left and right from piece to piece, Page Up and Page Down from buffer to buffer.",
    hint: "Hover over a piece, or use the arrow keys, for its tensor, slice, bytes and rank.",
    headings: () => ["buffer", "rank", "tensor", "from", "to", "bytes"],
    rows: () => layout.tableRows(),
    draw: (context, theme) => {
      const drawn = picture(context, theme);
      if (selected) drawSelectedShard(context, theme, layout, selected);
      return drawn;
    },
    point: (at) => point(at && layout.pieceAt(at)),
  });

  function show(next) {
    settings = next;
    const view = viewOf(settings.view) ?? scene.views[0];
    const byFormula = view.recipe !== null;
    views.set(view.title);
    stages.node.hidden = ranks.node.hidden = !byFormula;
    panel.hidden = !byFormula && scene.views.length === 1;
    if (byFormula) {
      stages.set(settings.stage);
      ranks.set(settings.worldSize);
    }
    layout = new ShardLayout(scene, view, settings);
    picture = keptPicture(scene.width, (context, theme) => drawShards(context, theme, layout));
    const { n, ranksPerRow, bytes } = layout;
    Object.assign(root.dataset, {
      worldSize: n, stage: byFormula ? settings.stage : (view.stage ?? ""), tensors: view.tensors.length,
      source: byFormula ? "formula" : view.source, view: view.title, ranksPerRow, length: layout.length,
      segments: layout.pieces(),
      ...Object.fromEntries(BUFFERS.map((buffer) => [`${buffer}Bytes`, Math.max(...bytes[buffer])])),
    });
    const elements = view.tensors.reduce((sum, [, numel]) => sum + numel, 0);
    sub.textContent = [
      plural(view.tensors.length, "tensor"), `${formatCount(elements)} elements`, plural(n, "rank"),
    ].join(", ");
    source.textContent = byFormula ? `By formula: ${cutOf(view.recipe)}.` : `Read from a run: ${view.source}.`;
    small.textContent =
      ranksPerRow > 1 ? `Each row stands for ${ranksPerRow} ranks and shows what any of them holds.` : "";
    const sizes = BUFFERS.map((buffer) => `${buffer} ${layout.held(buffer)}`).join("; ");
    refresh(`Shard map of ${sub.textContent}. ${source.textContent} ${sizes}.`);
    point(null);
  }

  function cutOf({ cut }) {
    if (settings.stage === 0 || layout.n === 1) return "every rank holds everything";
    return SHARD_CUTS[cut ?? (settings.stage === 3 ? "tensor" : "flat")];
  }

  // ---- the selection ----

  function point(at) {
    selected = at;
    if (at) mark(...layout.describe(at));
    else mark("");
  }

  function keys() {
    const { buffer, rank, segment } = selected ?? { buffer: BUFFERS[0], rank: 0 };
    const goTo = (panelOf, toRank) =>
      point({ buffer: panelOf, rank: toRank, segment: layout.nearest(panelOf, toRank, selected) });
    const panelAt = (by) => BUFFERS[clamp(BUFFERS.indexOf(buffer) + by, 0, BUFFERS.length - 1)];
    const step = (by) => {
      const pieces = layout.piecesOf(buffer, rank);
      if (!selected) goTo(buffer, rank);
      else if (pieces.length) {
        point({ buffer, rank, segment: pieces[clamp(pieces.indexOf(segment) + by, 0, pieces.length - 1)] });
      }
    };
    return {
      ArrowUp: () => goTo(buffer, Math.max(rank - 1, 0)),
      ArrowDown: () => goTo(buffer, selected ? Math.min(rank + 1, layout.n - 1) : 0),
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      PageUp: () => goTo(panelAt(-1), rank),
      PageDown: () => goTo(panelAt(selected ? 1 : 0), rank),
      Home: () => goTo(buffer, 0),
      End: () => goTo(buffer, layout.n - 1),
      Escape: () => point(null),
    };
  }

  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

export default widget(build, "shard-map");
