// The tensor split: steps and positions come from tensor_split.py, marks from tensor_split_marks.js, parts
// from tensor_split_parts.js; this file has the controls, the animation and the selection.

function build(model, signal) {
  const scene = model.get("scene");
  const stepMs = 1600;
  let settings = { ...model.get("settings") };
  let cut = null;
  let timer = 0; // of the next step while it plays, 0 while paused
  let selected = null; // { name, rank }: rank is null if all have it

  const cuts = choice({
    label: "Split",
    options: scene.cuts.map(({ name, title }) => [name, title]),
    value: settings.cut,
    onInput: (name) => (pause(), change({ cut: name, step: 0 })),
    signal,
  });
  const listed = (label, setting, values, format) => listSlider({
    label, values, value: settings[setting], format,
    onInput: (value) => change({ [setting]: value }), signal,
  });
  const sliders = {
    ranks: listed("Ranks", "ranks", scene.ranks, String),
    tokens: listed("Tokens T", "tokens", scene.tokens, formatCount),
    width: listed("Width D", "width", scene.widths, formatCount),
  };
  const player = stepButtons(
    {
      first: () => (pause(), go(0)),
      back: () => (pause(), go(settings.step - 1)),
      play: () => {
        if (timer) return pause(), update();
        const from = settings.step === last() ? 0 : settings.step;
        play();
        go(from);
      },
      forward: () => (pause(), go(settings.step + 1)),
      last: () => (pause(), go(last())),
    },
    signal,
  );
  const clock = make("span", { class: "shardlab-clock" });
  player.node.append(clock);
  const happens = make("p", { class: "shardlab-note", "aria-live": "polite" });
  const { root, sub, plot, small, refresh, mark } = frame({
    name: "tensor-split", title: "Tensor split", scene, draw, signal,
    controls: [[cuts.node], Object.values(sliders).map(({ node }) => node), player.node], above: [happens], small: "",
    label:
      "Tensor split. Left and right go from step to step, Space plays, up and down move through the parts.",
    hint: "Hover over a part, or use up and down, for its rows, columns, bytes and rank.",
    headings: () => ["step", "pass", "what happens", "communication", "each rank sends"],
    rows: () => splitRows(scene, cut, settings),
    point: (at) => point((at && under(at)) ?? null),
  });

  /** Called when the reader changes something. */
  function change(some) {
    settings = { ...settings, ...some };
    update();
    setTraits(model, { settings });
  }

  const same = () =>
    Object.entries(scene.given).every(([name, value]) => name === "step" || settings[name] === value);
  const measured = () => (scene.measured && same() ? scene.measured : null);

  function update() {
    cut = splitCut(scene, settings);
    const step = cut.steps[settings.step];
    const [forward, backward] = splitPassBytes(scene, settings);
    cuts.set(settings.cut);
    for (const [name, { set }] of Object.entries(sliders)) set(settings[name]);
    sub.textContent =
      `T = ${formatCount(settings.tokens)}, D = ${formatCount(settings.width)}, ` +
      plural(settings.ranks, "rank");
    happens.textContent = step.text;
    clock.textContent = `${settings.step + 1} / ${cut.steps.length}`;
    player.show({
      isPlaying: timer !== 0, isFirst: settings.step === 0, isLast: settings.step === last(),
    });
    const doubles = settings.gloo && settings.cut === "sequence";
    small.textContent = scene.small + (doubles ? scene.on_gloo : "");
    Object.assign(root.dataset, {
      cut: settings.cut, ranks: settings.ranks, tokens: settings.tokens, width: settings.width,
      step: settings.step, steps: cut.steps.length, playing: timer !== 0,
      forwardBytes: forward, backwardBytes: backward, op: step.op,
      stepBytes: splitStepBytes(scene, step, settings), measured: measured() !== null,
    });
    refresh(summary());
    point(selected && splitParts(cut, settings).some((part) => alike(part, selected)) ? selected : null);
  }

  function summary() {
    const sends = cut.steps
      .filter(({ op }) => op)
      .map((step) => `${splitOp(step)} ${formatBytes(splitStepBytes(scene, step, settings))}`);
    const { text } = cut.steps[settings.step];
    return `${cut.title}, ${sub.textContent}; each rank sends: ${sends.join(", ")}. Now: ${text}`;
  }

  // ---- animation ----

  const last = () => cut.steps.length - 1;
  const go = (step) => change({ step: clamp(step, 0, last()) });

  function pause() {
    clearTimeout(timer);
    timer = 0;
  }

  function play() {
    timer = setTimeout(() => {
      if (settings.step + 1 >= last()) pause();
      else play();
      go(settings.step + 1);
    }, stepMs);
  }

  // ---- parts ----

  const alike = (a, b) => a.name === b.name && a.rank === b.rank;

  function point(at) {
    selected = at;
    if (at) mark(describePart(scene, cut, settings, at), { selected: `${at.name}:${at.rank ?? "all"}` });
    else mark("");
  }

  function under({ x, y }) {
    return splitParts(cut, settings).findLast((part) => {
      const [left, top, width, height] = boxOfPart(cut, settings, part);
      return x >= left && x <= left + width && y >= top && y <= top + height;
    });
  }

  function draw(context, theme) {
    const marks = [
      ...scene.background, ...splitMarks(scene, settings), ...splitBars(scene, settings, measured()),
    ];
    const drawn = paint(context, marks, theme);
    if (!selected) return drawn;
    paintFocus(context, theme, ...boxOfPart(cut, settings, selected));
    return drawn + 1;
  }

  // ---- mouse and keyboard ----

  function keys() {
    const all = splitParts(cut, settings);
    const place = selected ? all.findIndex((part) => alike(part, selected)) : -1;
    return {
      ...player.keys,
      ArrowUp: () => point(all[Math.max(place - 1, 0)]),
      ArrowDown: () => point(all[Math.min(place + 1, all.length - 1)]),
      Escape: () => point(null),
    };
  }

  for (const node of [plot, player.node]) handleKeys(node, keys, signal);
  const changed = () => {
    settings = { ...model.get("settings") };
    update();
  };
  onTraits(model, ["settings"], changed, signal);
  signal.addEventListener("abort", pause);

  update();
  return root;
}

export default widget(build);
