// The unit life: colors and runs come from unit_life.py, the simulation from unit_life_model.js,
// the picture from unit_life_panels.js; this file has the controls and the selection.

function build(model, signal) {
  const scene = model.get("scene");
  let settings = { ...model.get("settings") };
  let picture = null;
  let selected = null; // { bar }, or { moment: { panel, time } }

  const formats = { count: String, s: formatSeconds, "B/s": (rate) => formatSi(rate, "B/s") };
  const setting = (name) => ({ value: settings[name], onInput: (value) => change({ [name]: value }), signal });
  const sliders = scene.sliders.map(([name, label, values, unit]) =>
    ({ name, ...listSlider({ label, values, format: formats[unit], ...setting(name) }) }));
  for (const { name, node } of sliders) node.dataset.setting = name;
  const either = (name, label, yes, no) =>
    ({ name, ...yesNo({ label, options: [["yes", yes], ["no", no]], ...setting(name) }) });
  const choices = [
    either("reshard_after_forward", "After forward", "free", "keep whole"),
    either("overlap", "Transfers", "overlapped", "sequential"),
  ];
  if (scene.measured.length > 1) {
    const options = scene.measured.map((_, rank) => [String(rank), String(rank)]);
    const onInput = (rank) => change({ rank: Number(rank) });
    choices.push({ name: "rank", ...choice({ label: "Rank", options, ...setting("rank"), onInput }) });
  }

  // In the browser, a recorded step has the same form as a simulated one.
  const measured = scene.measured.map((each) => ({
    ...each, spans: each.spans.map(([row, kind, start, end]) => ({ row, kind, start, end })),
  }));

  const { root, sub, stage, refresh, mark } = frame({
    name: "unit-life", title: "The life of FSDP units", scene: { width: scene.width, height: 200 },
    controls: [[...sliders, ...choices].map(({ node }) => node)], small: scene.small, draw, keys, signal,
    label:
      "Units of FSDP over time. Left and right arrow keys move through what happens, up and down arrow keys " +
      "through the units, Page Up and Page Down between simulated and measured, P goes to the peak, " +
      "Escape clears the selection.",
    hint: "Hover over a bar or the curve, or use the arrow keys, for details.",
    headings: () => ["", "unit", "event", "from", "to"],
    rows: () => picture.panels.flatMap(unitRows),
    point: (at) => point(at && under(at)),
  });

  /** Called when the reader changes something. */
  function change(some) {
    show({ ...settings, ...some });
    setTraits(model, { settings });
  }

  function show(next) {
    settings = next;
    picture = unitPicture({ ...scene, measured }, settings);
    selected = null;
    stage.resize(picture.height);
    for (const { name, set } of [...sliders, ...choices]) set(settings[name]);
    sub.textContent =
      `${plural(settings.units, "unit")} and the root, ${plural(settings.world_size, "rank")}, ` +
      `${formatBytes(settings.parameter_bytes)} of parameters`;
    const [simulated, ran] = picture.panels;
    Object.assign(root.dataset, {
      units: settings.units, forwardPrefetch: settings.forward_prefetch, backwardPrefetch: settings.backward_prefetch,
      peakBytes: simulated.peak.bytes, stepS: simulated.timeline.step,
      messages: JSON.stringify(messagesOf(simulated.timeline)),
    });
    if (ran) root.dataset.measuredPeakBytes = ran.peak.bytes;
    if (ran) root.dataset.measuredMessages = JSON.stringify(messagesOf(ran.timeline));
    refresh(summary());
    point(null);
  }

  function summary() {
    const each = picture.panels.map(
      ({ title, timeline, peak }) => `${title}: peak ${formatBytes(peak.bytes)}, ` +
        `${unitMessages(timeline)}, ${formatSeconds(timeline.step)}`,
    );
    return `${sub.textContent}. ${each.join("; ")}.`;
  }

  function draw(context, theme) {
    let drawn = picture.draw(context, theme);
    if (selected?.bar) {
      const { x, y, width, height } = picture.boxOf(selected.bar);
      paintFocus(context, theme, x, y, width, height);
      drawn += 1;
    } else if (selected) drawn += paint(context, picture.momentMarks(selected.moment), theme);
    return drawn;
  }

  // ---- selection ----

  function point(what) {
    selected = what;
    if (!what) return mark("");
    if (what.moment) return mark(describeUnits(what.moment), { selected: "moment" });
    const { panel, lane, span } = what.bar;
    const whose = panel.isMeasured ? `rank ${lane}` : "simulated";
    mark(describeUnitBar(what.bar, settings.rank), { selected: `${whose} ${panel.timeline.names[span.row]} ${span.kind}` });
  }

  const panelNow = () => selected?.bar?.panel ?? selected?.moment.panel ?? picture.panels[0];

  /** The bars of the panel in the selected lane, in order of time. */
  function barsNow(panel = panelNow()) {
    const lane = Math.min(selected?.bar?.lane ?? settings.rank, panel.lanes.length - 1);
    return panel.bars.filter((bar) => bar.lane === lane).toSorted((a, b) => a.span.start - b.span.start);
  }

  function move(across) {
    const bars = barsNow();
    const at = bars.indexOf(selected?.bar);
    const next = at < 0 ? (across < 0 ? bars.length - 1 : 0) : clamp(at + across, 0, bars.length - 1);
    point({ bar: bars[next] });
  }

  /** The bar of the next unit, the one nearest in time. */
  function moveRow(down) {
    if (!selected?.bar) return move(1);
    const { panel, span } = selected.bar;
    const row = clamp(span.row + down, 0, panel.timeline.names.length - 1);
    pointNearest(barsNow().filter((bar) => bar.span.row === row), span.start);
  }

  function movePanel(down) {
    const index = clamp(picture.panels.indexOf(panelNow()) + down, 0, picture.panels.length - 1);
    pointNearest(barsNow(picture.panels[index]), selected?.bar?.span.start ?? selected?.moment.time ?? 0);
  }

  function pointNearest(bars, time) {
    const off = ({ span }) => Math.abs(span.start - time);
    if (bars.length) point({ bar: bars.reduce((best, bar) => (off(bar) < off(best) ? bar : best)) });
  }

  function toPeak() {
    const panel = panelNow();
    point({ moment: { panel, time: panel.timeline.times[panel.peak.index] } });
  }

  function keys() {
    return {
      ArrowLeft: () => move(-1),
      ArrowRight: () => move(1),
      ArrowUp: () => moveRow(-1),
      ArrowDown: () => moveRow(1),
      PageUp: () => movePanel(-1),
      PageDown: () => movePanel(1),
      Home: () => move(-Infinity),
      End: () => move(Infinity),
      p: toPeak,
      Escape: () => point(null),
    };
  }

  function under(at) {
    const bar = picture.barAt(at);
    if (bar) return { bar };
    const moment = picture.timeAt(at);
    return moment && { moment };
  }

  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

// ---- words ----

const UNIT_EVENTS = {
  gather: "all-gather", waits: "waits in its buffer", whole: "whole", forward: "computes forward",
  backward: "computes backward", reduce: "reduce-scatter",
};

/** A panel's spans, as rows of the table. */
function unitRows({ title, timeline, isMeasured }) {
  return timeline.spans.toSorted((a, b) => a.start - b.start).map(({ row, kind, start, end }) => [
    isMeasured ? title : "Simulated", timeline.names[row], UNIT_EVENTS[kind], formatSeconds(start), formatSeconds(end),
  ]);
}

function describeUnitBar({ panel, lane, span }, rank) {
  const { row, kind, start, end } = span;
  const who = panel.isMeasured ? `Measured, rank ${panel.lanes.length > 1 ? lane : rank}` : "Simulated";
  return (
    `${who} · ${panel.timeline.names[row]}: ${UNIT_EVENTS[kind]}, ${formatSeconds(end - start)}, ` +
    `from ${formatSeconds(start)} to ${formatSeconds(end)}`
  );
}

/** What is live at a moment, and which units are whole. */
function describeUnits({ panel, time }) {
  const { timeline, title } = panel;
  const index = Math.max(timeline.times.findLastIndex((each) => each <= time), 0);
  const bytes = UNIT_CATEGORIES.map((name) => `${name} ${formatBytes(timeline.live[name][index])}`);
  const whole = timeline.spans
    .filter(({ kind, start, end }) => kind === "whole" && start <= time && time < end)
    .toSorted((a, b) => a.row - b.row)
    .map(({ row }) => timeline.names[row]);
  return (
    `${title} at ${formatSeconds(time)}: ${bytes.join(", ")}, together ` +
    `${formatBytes(liveTotal(timeline, index))}; whole: ${whole.join(", ") || "no unit"}`
  );
}

export default widget(build);
