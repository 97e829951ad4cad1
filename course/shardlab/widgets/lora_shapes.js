// LoRA's shapes: numbers and marks come from lora_shapes_marks.js; this file has the controls and the
// selected matrix.

function build(model, signal) {
  const scene = model.get("scene");
  let settings = { ...model.get("settings") };
  let selected = null; // "W_q A"

  const models = choice({
    label: "Model", options: scene.models.map(([name]) => [name, name]), value: "",
    onInput: (name) => {
      const [width, layers] = new Map(scene.models).get(name);
      change({ width, layers });
    },
    signal,
  });
  const modules = choice({
    label: "Adapters on", options: scene.modules.map(([name]) => [name, name]), value: settings.modules,
    onInput: (name) => change({ modules: name }), signal,
  });
  const sliders = scene.sliders.map(([name, label, values]) => {
    const { node, set } = listSlider({
      label, values, value: settings[name], format: loraCount, onInput: (value) => change({ [name]: value }), signal,
    });
    return { name, node, set };
  });
  const { root, sub, refresh, mark } = frame({
    name: "lora-shapes", title: "LoRA's matrices", scene, small: scene.small, draw, keys, signal,
    controls: [[models, modules, ...sliders].map(({ node }) => node)],
    label:
      "LoRA's matrices. Left and right arrow keys go from matrix to matrix, Home and End to the first and last, " +
      "Escape clears the selection.",
    hint: "Hover over a matrix, or use the arrow keys, for its size.",
    headings: () => ["", "full fine-tuning", "LoRA"], rows,
    point: (at) => select(at && under(at)?.key),
  });

  /** Called when the reader changes something. r is at most the width. */
  function change(some) {
    const next = { ...settings, ...some };
    show({ ...next, r: Math.min(next.r, next.width) });
    setTraits(model, { settings });
  }

  function show(next) {
    settings = next;
    const { width, layers, r } = settings;
    const named = scene.models.find(([, sizes]) => sizes[0] === width && sizes[1] === layers);
    models.set(named?.[0] ?? "");
    modules.set(settings.modules);
    for (const { name, set } of sliders) set(settings[name]);
    const costs = loraCosts(scene, settings);
    sub.textContent = loraTrained(costs);
    Object.assign(root.dataset, { width, layers, r, modules: settings.modules, ranks: settings.ranks, ...costs });
    const values = rows().slice(1).map(([what, full, lora]) => `${what}: ${lora} instead of ${full}`);
    refresh(`d = ${width}, ${plural(layers, "layer")}, r = ${r}: ${sub.textContent}. ${values.join("; ")}.`);
    select(selected);
  }

  function rows() {
    const costs = loraCosts(scene, settings);
    return [
      ["trained parameters", loraCount(costs.parameters), loraCount(costs.adapters)],
      ["memory of each rank", formatSi(costs.fullBytes, "B"), formatSi(costs.loraBytes, "B")],
      ["Adam's states", ...[costs.parameters, costs.adapters].map((n) => formatSi(scene.adam_bytes * n, "B"))],
      ["sent by each rank in a step", formatSi(costs.fullSentBytes, "B"), formatSi(costs.loraSentBytes, "B")],
    ];
  }

  // ---- matrices ----

  /** W, A and B of each weight: { key, box, rows, columns }. */
  function matrices() {
    const { r } = settings;
    return loraBoxes(scene, settings).flatMap(({ name, shape: [height, width], boxes }) =>
      [["W", height, width], ["A", r, width], ["B", height, r]].map(([kind, high, wide]) =>
        ({ key: `${name} ${kind}`, name, kind, box: boxes[kind], rows: high, columns: wide })),
    );
  }

  function select(key) {
    const found = matrices().find((matrix) => matrix.key === key);
    selected = found?.key ?? null;
    const text = found
      ? `${found.kind === "W" ? found.name : `${found.kind} of ${found.name}`}: ${loraCount(found.rows)} × ` +
        `${loraCount(found.columns)} = ${loraCount(found.rows * found.columns)} parameters, ` +
        (found.kind === "W" ? "frozen" : "trained")
      : "";
    mark(text, { selected: selected ?? "" });
  }

  function keys() {
    const all = matrices().map(({ key }) => key);
    const place = all.indexOf(selected);
    const to = (index) => () => select(all[clamp(index, 0, all.length - 1)]);
    return {
      ArrowLeft: to(place - 1), ArrowRight: to(place + 1), Home: to(0), End: to(Infinity), Escape: () => select(null),
    };
  }

  function draw(context, theme) {
    const drawn = paint(context, loraMarks(scene, settings), theme);
    const found = matrices().find(({ key }) => key === selected);
    if (found) paintFocus(context, theme, ...found.box);
    return drawn;
  }

  /** Thin matrices have a margin of 3 pixels, in which A and B take precedence over W. */
  const under = ({ x, y }) => matrices().reverse().find(({ box: [left, top, width, height] }) =>
    x >= left - 3 && x <= left + width + 3 && y >= top - 3 && y <= top + height + 3);

  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);
  show(settings);
  return root;
}

export default widget(build);
