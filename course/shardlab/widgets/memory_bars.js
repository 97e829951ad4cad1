// Memory bars: this file has the controls and the selection. Nothing here asks the kernel.

const BAR_SETTINGS = ["worldSize", "stage", "precision", "optimizer", "offload", "unit"];

function build(model, signal) {
  const scene = model.get("scene");
  let settings = { ...model.get("settings") };
  let bars = { rows: [] }; // of barRows
  let selected = null; // { row, part }: indices; part -1 is the whole row

  const exponent = (value) => Math.log10(value);
  const given = settings.parameters; // may lie between the slider's steps; kept exactly
  const lowest = Math.min(5, Math.floor(exponent(given)));
  const highest = Math.max(12.3, Math.ceil(exponent(given)));
  const parametersAt = (x) =>
    Math.abs(x - exponent(given)) <= 0.0051 ? given : Number((10 ** x).toPrecision(3));
  const change = (changes) => {
    show({ ...settings, ...changes });
    setTraits(model, { settings });
  };
  const setting = (name) => ({ value: settings[name], onInput: (value) => change({ [name]: value }), signal });
  const options = (...pairs) => pairs.map((pair) => [pair].flat()).map(([value, text = value]) => [value, text]);
  const controls = {
    parameters: slider({
      label: "Ψ parameters", min: lowest, max: highest, step: 0.01, value: exponent(given), signal,
      format: (x) => formatCount(parametersAt(x)),
      onInput: (x) => change({ parameters: parametersAt(x) }),
    }),
    worldSize: listSlider({ label: "N ranks", values: scene.world_sizes, ...setting("worldSize") }),
    stage: choice({
      label: "ZeRO stage", options: options("0", "1", "2", "3"), ...setting("stage"),
      onInput: (stage) => change({ stage: Number(stage) }),
    }),
    precision: choice({ label: "precision", options: options(...scene.precisions), ...setting("precision") }),
    optimizer: choice({
      label: "optimizer", options: options(["sgd", "SGD"], "momentum", ["adam", "Adam"], ["adam8bit", "8-bit Adam"]),
      ...setting("optimizer"),
    }),
    offload: choice({
      label: "offload", options: options("none", "optimizer", ["parameters", "params"], "both"), ...setting("offload"),
    }),
    unit: choice({ label: "unit", options: options(["GB", "GB (10⁹)"], ["GiB", "GiB (2³⁰)"]), ...setting("unit") }),
  };
  controls.optimizer.node.classList.add("shardlab-wide");
  const verdict = make("p", { class: "shardlab-verdict", role: "status" });
  const { root, plot, stage, refresh, mark } = frame({
    name: "memory-bars", title: "Model states on each rank", scene, above: [verdict], small: scene.footer, keys, signal,
    controls: [Object.values(controls).map(({ node }) => node)],
    label:
      "Memory bars. Up and down move from bar to bar, left and right through its categories, Enter selects a stage.",
    hint: "Hover over a bar for its bytes, click a stage to select it.",
    headings: () => ["row", "category", settings.unit === "GB" ? "GB (10⁹)" : "GiB (2³⁰)", "bytes"],
    rows: () => bars.rows.flatMap(({ label, parts }) => parts.map(([name, bytes]) => [
      label, name, (bytes / (settings.unit === "GB" ? 1e9 : 2 ** 30)).toPrecision(4),
      Math.round(bytes).toLocaleString("en-US"),
    ])),
    draw,
    point: (at) => point(at && partAt(at)),
  });
  root.dataset.measuredRanks = scene.measured.length;
  if (scene.capacity_bytes !== null) root.dataset.capacityBytes = scene.capacity_bytes;

  function show(next) {
    settings = next;
    const { parameters } = settings;
    for (const name of BAR_SETTINGS) controls[name].set(settings[name]);
    if (parametersAt(controls.parameters.value) !== parameters) controls.parameters.set(exponent(parameters));
    bars = barRows(scene, settings);
    const { rows } = bars;
    const { words, fits, largest } = verdictOn(scene, settings, rows);
    verdict.replaceChildren(...words);
    if (largest !== undefined) root.dataset.largestModel = largest;
    Object.assign(root.dataset, {
      parameters, fits, ...Object.fromEntries(BAR_SETTINGS.map((name) => [name, settings[name]])),
      deviceBytes: rows[settings.stage].bytes, hostBytes: rows.at(-1).bytes,
    });
    refresh(`${summarizeBars(settings, rows)} ${verdict.textContent}`);
    point(rows[selected?.row] ? selected : null);
  }

  function point(at) {
    selected = at;
    if (at) mark(...describeBar(scene, settings, bars.rows[at.row], at.part));
    else mark("");
  }

  function draw(context, theme) {
    const drawn = paint(context, barMarks(scene, settings, bars), theme);
    if (!selected) return drawn;
    const { boxes, top, thick } = bars.rows[selected.row];
    const [first, last] = selected.part < 0 ? [boxes[0], boxes.at(-1)] : [boxes[selected.part], boxes[selected.part]];
    paintFocus(context, theme, first.x, top, Math.max(last.x + last.width - first.x, 2), thick);
    return drawn + 1;
  }

  // ---- mouse and keyboard ----

  function partAt({ x, y }) {
    const index = bars.rows.findIndex((each) => y >= each.y && y < each.y + each.height);
    if (index < 0) return null;
    const part = bars.rows[index].boxes.findIndex((box) => x >= box.x && x < box.x + box.width);
    return { row: index, part };
  }

  function chooseStage(at) {
    const chosen = at && bars.rows[at.row].stage;
    if (chosen === undefined || chosen === null) return;
    change({ stage: chosen });
  }

  function keys() {
    const at = selected ?? { row: -1, part: -1 };
    const to = (index, part) => {
      const next = clamp(index, 0, bars.rows.length - 1);
      point({ row: next, part: clamp(part, -1, bars.rows[next].parts.length - 1) });
    };
    return {
      ArrowUp: () => to(at.row - 1, at.part),
      ArrowDown: () => to(at.row + 1, at.part),
      ArrowLeft: () => to(at.row, at.part - 1),
      ArrowRight: () => to(at.row, at.part + 1),
      Home: () => to(0, -1),
      End: () => to(bars.rows.length - 1, -1),
      Enter: () => chooseStage(selected),
      " ": () => chooseStage(selected),
      Escape: () => point(null),
    };
  }

  plot.addEventListener("click", (event) => chooseStage(partAt(stage.at(event))), { signal });
  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

export default widget(build);
