// The pipeline schedules: names and colors come from pipeline_schedule.py, the simulation from
// pipeline_model.js, the picture from pipeline_panels.js, words from pipeline_words.js, sliders from
// pipeline_sliders.js, and the next selection from pipeline_selection.js; this file has the clock.

function build(model, signal) {
  const scene = model.get("scene");
  const { names, unit_s: unitS } = scene;
  const playMs = 9000; // from the first action to the last
  let settings = { ...model.get("settings") };
  let picture = null;
  let time = null; // of the clock, in units of the costs; null: everything is shown
  let selected = null; // { panel, device, index } of a slot

  const { sliders, sizes, costs } = pipelineSliders({ scene, settings, formatTime, change, signal });
  const shown = checkList({
    label: "Schedules", options: scene.order.map((name) => [name, names[name]]), onInput: (chosen) => change({ shown: chosen }),
    signal,
  });
  const play = playButton();
  const clockSlider = make("input", {
    type: "range", min: "0", max: "1000", step: "1", value: "1000", "aria-label": "Time",
  });
  const clockText = make("span", { class: "shardlab-clock" });
  const bar = make("div", { class: "shardlab-controls", role: "toolbar" }, play.node, clockSlider, clockText);
  keepKeys(clockSlider, signal);
  const note = make("p", { class: "shardlab-note", role: "status" });
  const { root, sub, plot, stage, refresh, mark } = frame({
    name: "pipeline-schedule", title: "Pipeline schedules", scene: { width: scene.width, height: 120 },
    controls: [[shown.node], sizes, costs, bar], above: [note], small: scene.small, draw, signal,
    label:
      "Pipeline schedules. Arrow keys move through the actions, Space plays, Escape clears the selection.",
    hint: "Hover over an action, or use the arrow keys, for details. Press Play to see memory fill.",
    headings: () => [
      "schedule", "time", "bubble of ideal time", "of total time", "per device span", "in flight, by device",
    ],
    rows: () => panelsDrawn().map(({ title, makespan, overIdeal, fraction, spanBubble, peaks, v }) => [
      title, formatTime(makespan), formatPercent(overIdeal), formatPercent(fraction),
      formatPercent(spanBubble), peaks.map((held) => formatShare(held, v)).join(", "),
    ]),
    point: (at) => point(at && picture.slotAt(at)),
  });

  /** Called when the reader changes something. */
  function change(some) {
    show({ ...settings, ...some });
    setTraits(model, { settings });
  }

  function formatTime(value) {
    return formatPipelineTime(value, unitS);
  }

  // ---- the schedules that are drawn ----

  const panelsDrawn = () => picture.panels.filter(({ slots }) => slots);

  function show(next) {
    settings = next;
    clock.stop();
    time = null;
    picture = pipelinePicture(scene, settings);
    selected = null;
    stage.resize(picture.height);
    for (const [name, { set }] of Object.entries(sliders)) set(settings[name]);
    hideIdleSliders();
    shown.set(settings.shown);
    sub.textContent = `${plural(settings.p, "device")}, ${plural(settings.m, "micro-batch", "micro-batches")}`;
    note.textContent = aboutMeasured(scene, settings, picture);
    note.hidden = note.textContent === "";
    for (const name of ["p", "m", "v"]) root.dataset[name] = settings[name];
    const figures = (what) =>
      JSON.stringify(Object.fromEntries(panelsDrawn().map((panel) => [panel.title, what(panel)])));
    root.dataset.bubbles = figures(({ overIdeal }) => Number(overIdeal.toFixed(6)));
    root.dataset.peaks = figures(({ peaks }) => peaks);
    root.dataset.makespans = figures(({ makespan }) => Number(makespan.toFixed(6)));
    refresh(summary());
    point(null);
    showTime();
  }

  /** Hides sliders that would change nothing: custom schedules do not depend on p, m and v. */
  function hideIdleSliders() {
    const generated = settings.shown.filter((name) => !scene.custom[name]);
    sliders.p.node.hidden = sliders.m.node.hidden = generated.length === 0;
    sliders.v.node.hidden = !generated.includes("interleaved");
  }

  function summary() {
    const each = panelsDrawn().map(
      ({ title, overIdeal, peaks, v }) => `${title}: bubble ${formatPercent(overIdeal)} of ideal time, ` +
        `${formatShare(Math.max(...peaks), v)} micro-batches in flight at most`,
    );
    return `${sub.textContent}. ${each.join(". ")}.`;
  }

  function draw(context, theme) {
    const drawn = picture.draw(context, theme, time);
    if (!selected) return drawn;
    const { x, y, width, height } = picture.boxOf(selected);
    paintFocus(context, theme, x, y, width, height);
    return drawn + 1;
  }

  // ---- the clock ----

  function showTime() {
    const at = time ?? picture.longest;
    clockSlider.value = Math.round((1000 * at) / picture.longest);
    clockText.textContent = formatTime(Number(at.toFixed(2)));
    clockSlider.setAttribute("aria-valuetext", clockText.textContent);
    root.dataset.playing = clock.isRunning;
    root.dataset.time = time === null ? "" : time.toFixed(3);
    play.show(clock.isRunning);
    stage.redraw();
  }

  const clock = frameClock({
    advance: (ms) => {
      time += (ms / playMs) * picture.longest;
      if (time < picture.longest) return true;
      time = null;
      return false;
    },
    show: showTime, stillMs: playMs / 12, signal,
  });

  function toggle() {
    if (clock.isRunning) {
      clock.stop();
      return showTime();
    }
    if (time === null || time >= picture.longest) time = 0;
    clock.start();
  }

  play.node.addEventListener("click", toggle, { signal });
  clockSlider.addEventListener(
    "input",
    () => {
      clock.stop();
      const at = Number(clockSlider.value) / 1000;
      time = at === 1 ? null : at * picture.longest;
      showTime();
    },
    { signal },
  );

  // ---- mouse and keyboard ----

  function point(what) {
    selected = what;
    if (!what) return mark("");
    const panel = picture.panels[what.panel];
    const { kind, stage: number, microBatch } = panel.slots[what.device][what.index];
    mark(describeSlot(panel, what, unitS), { selected: `${panel.title} ${number}${kind}${microBatch}` });
  }

  function move(across, down) {
    const next = nextSlot(picture.panels, selected, across, down);
    if (next) point(next);
  }

  const keys = () => ({
    ArrowLeft: () => move(-1, 0),
    ArrowRight: () => move(1, 0),
    ArrowUp: () => move(0, -1),
    ArrowDown: () => move(0, 1),
    Home: () => move(-Infinity, 0),
    End: () => move(Infinity, 0),
    " ": toggle,
    Escape: () => point(null),
  });

  for (const node of [plot, bar]) handleKeys(node, keys, signal);
  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

export default widget(build);
