// The offload times: positions and names come from offload_times.py, the formula from
// offload_model.js, marks from offload_marks.js; this file has the controls and the selection.

function build(model, signal) {
  const scene = model.get("scene");
  const { row, all_top: allTop, names } = scene;
  let settings = { ...model.get("settings") };
  let all = null; // placement: outcome
  let selected = null; // { bar } of the step, or { placement } of all

  const formatter = (unit) => (value) =>
    unit === "count" ? formatCount(value)
    : unit === "count/s" ? `${formatCount(value)} parameters/s`
    : formatSi(value, unit);
  const setting = (name) => ({ value: settings[name], onInput: (value) => change({ [name]: value }), signal });
  const sliders = scene.sliders.map(([name, label, values, unit]) =>
    ({ name, ...listSlider({ label, values, format: formatter(unit), ...setting(name) }) }));
  const placements = choice({
    label: "Placement", options: PLACEMENTS.map((name) => [name, names[name]]), ...setting("placement"),
  });
  const overlap = yesNo({
    label: "Transfers", options: [["yes", "overlapped"], ["no", "sequential"]], ...setting("overlap"),
  });
  const delayed = yesNo({
    label: "Host update", options: [["no", "same step"], ["yes", "one step late"]], ...setting("delayed_update"),
  });
  delayed.node.title = "One step late: only with the optimizer on the host. The parameters are then one step old.";
  const { root, sub, plot, stage, refresh, mark } = frame({
    name: "offload-times", title: "Offload: time of a step", scene, small: scene.small, draw, keys, signal,
    controls: [[...sliders, overlap, delayed].map(({ node }) => node), [placements.node]],
    label: "Offload times. Up and down choose a placement, left and right move through its step.",
    hint: "Hover over a bar, or use the arrow keys, for its seconds and bytes.",
    headings: () => ["placement", "step", "ratio", "device compute", "device", "host", "NVMe", "fits"],
    rows: () => PLACEMENTS.map((name) => placementRow(scene, settings, all, name)),
    point: (at) => point(at && under(at)),
  });

  /** Called when the reader changes something. */
  function change(some) {
    settings = { ...settings, ...some };
    update();
    setTraits(model, { settings });
  }

  const ranks = () => plural(settings.world_size, "rank");

  function update() {
    all = Object.fromEntries(PLACEMENTS.map((name) => [name, offloadOutcome(settings, name)]));
    const chosen = all[settings.placement];
    for (const { name, set } of sliders) set(settings[name]);
    placements.set(settings.placement);
    overlap.set(settings.overlap);
    delayed.set(settings.delayed_update);
    sub.textContent = `${formatCount(settings.parameters)} parameters on ${ranks()}`;
    Object.assign(root.dataset, {
      placement: settings.placement, parameters: settings.parameters, worldSize: settings.world_size,
      stepS: chosen.step_s, ratio: offloadRatio(settings.placement, all).toFixed(4),
      deviceBytes: chosen.device_bytes, fits: fitsIn(chosen, settings),
    });
    const steps = PLACEMENTS.map(
      (name) => `${names[name]} ${formatSeconds(all[name].step_s)} (${fitWords(all[name], settings)})`,
    );
    refresh(`A step of ${formatCount(settings.parameters)} parameters on ${ranks()}: ${steps.join(", ")}.`);
    point(null);
  }

  function point(what) {
    selected = what;
    if (!what) mark("");
    else if (what.bar) {
      mark(describeOffloadBar(scene, settings, what.bar), { selected: `${what.bar.part} ${what.bar.piece}` });
    } else mark(describePlacement(scene, settings, all, what.placement), { selected: what.placement });
  }

  function draw(context, theme) {
    const outcome = all[settings.placement];
    const step = offloadStepMarks(context, theme, scene, settings, outcome);
    const drawn = paint(context, [...scene.background, ...step, ...placementMarks(scene, settings, all)], theme);
    if (!selected) return drawn;
    const { bar, placement: name } = selected;
    const { x, y, width, height } = bar
      ? offloadBox(scene, outcome, bar)
      : { x: 1, y: allTop + PLACEMENTS.indexOf(name) * row + 1, width: scene.width - 2, height: row - 2 };
    paintFocus(context, theme, x, y, width, height);
    return drawn + 1;
  }

  // ---- mouse and keyboard ----

  const placementAt = ({ y }) => PLACEMENTS[Math.floor((y - allTop) / row)];

  function under(at) {
    const near = 2; // so that thin bars can be hit
    const outcome = all[settings.placement];
    const bar = outcome.bars.findLast((each) => {
      const { x, y, width, height } = offloadBox(scene, outcome, each);
      return at.x >= x - near && at.x <= x + width + near && at.y >= y && at.y <= y + height;
    });
    if (bar) return { bar };
    return placementAt(at) ? { placement: placementAt(at) } : null;
  }

  function pick(name) {
    change({ placement: name });
    point({ placement: name });
  }

  function keys() {
    const at = PLACEMENTS.indexOf(settings.placement);
    const bars = all[settings.placement].bars.toSorted((a, b) => a.start - b.start);
    const place = bars.findIndex(
      ({ part, piece }) => part === selected?.bar?.part && piece === selected?.bar?.piece,
    );
    const to = (index) => point({ bar: bars[clamp(index, 0, bars.length - 1)] });
    return {
      ArrowUp: () => pick(PLACEMENTS[Math.max(at - 1, 0)]),
      ArrowDown: () => pick(PLACEMENTS[Math.min(at + 1, PLACEMENTS.length - 1)]),
      ArrowLeft: () => to(place - 1),
      ArrowRight: () => to(place + 1),
      Home: () => to(0),
      End: () => to(bars.length - 1),
      Escape: () => point(null),
    };
  }

  plot.addEventListener(
    "click",
    (event) => {
      const name = placementAt(stage.at(event));
      if (name) pick(name);
    },
    { signal },
  );
  const changed = () => {
    settings = { ...model.get("settings") };
    update();
  };
  onTraits(model, ["settings"], changed, signal);

  update();
  return root;
}

export default widget(build);
