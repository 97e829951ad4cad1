// The tensor split: steps and places come from tensor_split.py, marks from tensor_split_marks.js;
// here are the controls, the steps in time and pointing at parts.

function render({ model, el }) {
  const scene = model.get("scene");
  const stop = new AbortController();
  const { signal } = stop;
  const [PLAY, PAUSE] = [icon("M2 1v12l11-6z"), icon("M2 1h4v12h-4zM8 1h4v12h-4z")];
  const stepMs = 1600;
  let settings = { ...model.get("settings") };
  let cut = null;
  let timer = 0; // of the next step while it plays, 0 while paused
  let selected = null; // { name, rank }: rank null where all have it
  let table = null;

  const root = make("div", { class: "shardlab-widget" });
  root.dataset.widget = "tensor-split";
  const sub = make("span", { class: "shardlab-sub" });
  const head = make("div", { class: "shardlab-head" });
  head.append(make("span", { class: "shardlab-title" }, "Tensor split"), sub);

  // ---- settings ----

  const cuts = choice({
    label: "Cut",
    options: scene.cuts.map(({ name, title }) => [name, title]),
    value: settings.cut,
    onInput: (name) => (pause(), change({ cut: name, step: 0 })),
    signal,
  });
  const over = (label, setting, values, format) => {
    const control = slider({
      label, min: 0, max: values.length - 1, value: values.indexOf(settings[setting]),
      format: (index) => format(values[index]),
      onInput: (index) => change({ [setting]: values[index] }), signal,
    });
    control.node.dataset.setting = setting;
    const set = () => values.includes(settings[setting]) && control.set(values.indexOf(settings[setting]));
    return { node: control.node, set };
  };
  const sliders = [
    over("Ranks", "ranks", scene.ranks, String),
    over("Tokens T", "tokens", scene.tokens, formatCount),
    over("Width D", "width", scene.widths, formatCount),
  ];
  const choices = make("div", { class: "shardlab-settings" }, cuts.node);
  const controls = make("div", { class: "shardlab-settings" }, ...sliders.map(({ node }) => node));

  const stage = createStage({ root, width: scene.width, height: scene.height, label: "", draw, signal });
  const plot = make("div", {
    class: "shardlab-plot",
    tabindex: "0",
    role: "group",
    "aria-label":
      "Tensor split. Left and right go from step to step, space plays, up and down move through the parts.",
  });
  plot.append(stage.canvas);
  const toolbar = make("div", { class: "shardlab-controls", role: "toolbar" });
  const buttons = {
    first: button("To the start (Home)", icon("M2 2h2v10h-2zM12 2v10l-8-5z")),
    back: button("One step back (left arrow)", icon("M11 2v10l-8-5z")),
    play: button("Play (space)", PLAY),
    forward: button("One step forward (right arrow)", icon("M3 2v10l8-5z")),
    last: button("To the end (End)", icon("M2 2v10l8-5zM10 2h2v10h-2z")),
  };
  const clock = make("span", { class: "shardlab-clock" });
  toolbar.append(...Object.values(buttons), clock);
  const happens = make("p", { class: "shardlab-note", "aria-live": "polite" });
  const detail = make("p", {
    class: "shardlab-detail",
    "aria-live": "polite",
    "data-hint": "Point at a part, or use up and down, for its rows, columns, bytes and rank.",
  });
  const small = make("p", { class: "shardlab-small" });
  root.append(head, choices, controls, happens, plot, toolbar, detail, small);

  /** The reader moved something: redrawn at once; the kernel is told and not waited for. */
  function change(some) {
    settings = { ...settings, ...some };
    update();
    model.set("settings", settings);
    model.save_changes();
  }

  const same = () =>
    Object.entries(scene.given).every(([name, value]) => name === "step" || settings[name] === value);
  const measured = () => (scene.measured && same() ? scene.measured : null);
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  function update() {
    cut = splitCut(scene, settings);
    const step = cut.steps[settings.step];
    const [forward, backward] = splitPassBytes(scene, settings);
    cuts.set(settings.cut);
    for (const { set } of sliders) set();
    sub.textContent =
      `T = ${formatCount(settings.tokens)}, D = ${formatCount(settings.width)}, ` +
      plural(settings.ranks, "rank");
    happens.textContent = step.told;
    clock.textContent = `${settings.step + 1} / ${cut.steps.length}`;
    buttons.first.disabled = buttons.back.disabled = settings.step === 0;
    buttons.last.disabled = buttons.forward.disabled = settings.step === cut.steps.length - 1;
    buttons.play.replaceChildren(timer ? PAUSE : PLAY);
    buttons.play.title = timer ? "Pause (space)" : "Play (space)";
    buttons.play.setAttribute("aria-label", buttons.play.title);
    const doubles = settings.gloo && settings.cut === "sequence";
    small.textContent = scene.small + (doubles ? scene.on_gloo : "");
    Object.assign(root.dataset, {
      cut: settings.cut, ranks: settings.ranks, tokens: settings.tokens, width: settings.width,
      step: settings.step, steps: cut.steps.length, playing: timer !== 0,
      forwardBytes: forward, backwardBytes: backward, travels: step.op,
      stepBytes: splitStepBytes(scene, step, settings), measured: measured() !== null,
    });
    stage.canvas.setAttribute("aria-label", summary());
    const fresh = tableDetails(
      "As a table", ["step", "pass", "what happens", "travels", "each rank sends"], rows, signal,
    );
    if (table) {
      fresh.open = table.open;
      table.replaceWith(fresh);
    } else root.append(fresh);
    table = fresh;
    point(selected && parts().some((part) => alike(part, selected)) ? selected : null);
  }

  function summary() {
    const travels = cut.steps
      .filter(({ op }) => op)
      .map((step) => `${words(step)} ${formatBytes(splitStepBytes(scene, step, settings))}`);
    const { told } = cut.steps[settings.step];
    return `${cut.title}, ${sub.textContent}; each rank sends: ${travels.join(", ")}. Now: ${told}`;
  }

  const words = ({ op, on }) => `${op.replace("_", "-")} of ${on}`;

  function rows() {
    return cut.steps.map((step, index) => [
      index + 1, step.backward ? "backward" : "forward", step.told, step.op ? words(step) : "–",
      exactBytes(splitStepBytes(scene, step, settings)),
    ]);
  }

  // ---- steps in time ----

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

  const actions = {
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
  };
  for (const [name, action] of Object.entries(actions)) {
    buttons[name].addEventListener("click", action, { signal });
  }

  // ---- parts ----

  const alike = (a, b) => a.name === b.name && a.rank === b.rank;

  /** Everything that lies on a rank or on all, from left to right, forward first. */
  function parts() {
    const { states } = cut.steps[settings.step];
    const names = Object.keys(cut.boxes).filter((name) => states[name]);
    names.sort((a, b) => (a.length - b.length) || cut.boxes[a][0] - cut.boxes[b][0]);
    return names.flatMap((name) =>
      states[name] === "whole"
        ? [{ name, rank: null }]
        : Array.from({ length: settings.ranks }, (_, rank) => ({ name, rank })),
    );
  }

  function boxOf({ name, rank }) {
    const how = cut.steps[settings.step].states[name];
    return rank === null ? cut.boxes[name] : splitPiece(cut.boxes[name], how, rank, settings.ranks);
  }

  function describe({ name, rank }) {
    const how = cut.steps[settings.step].states[name];
    const shape = splitShape(scene, name, settings);
    const bytes = shape[0] * shape[1] * settings.element_bytes;
    if (rank === null) return `${name}: all of it on every rank, ${exactBytes(bytes)} each`;
    if (how === "partial") return `rank ${rank}: a summand of all of ${name}, ${exactBytes(bytes)}`;
    const whole = shape[how === "rows" ? 0 : 1];
    const [from, to] = [rank, rank + 1].map((each) => Math.round((whole * each) / settings.ranks));
    const size = exactBytes((bytes / whole) * (to - from));
    return `rank ${rank}: ${how} ${from} to ${to} of ${name}'s ${whole}, ${size}`;
  }

  function point(at) {
    selected = at;
    detail.textContent = at ? describe(at) : "";
    if (at) root.dataset.selected = `${at.name}:${at.rank ?? "all"}`;
    else delete root.dataset.selected;
    stage.redraw();
  }

  function under({ x, y }) {
    return parts().findLast((part) => {
      const [left, top, width, height] = boxOf(part);
      return x >= left && x <= left + width && y >= top && y <= top + height;
    });
  }

  function draw(context, theme) {
    const marks = [
      ...scene.ground, ...splitMarks(scene, settings), ...splitBars(scene, settings, measured()),
    ];
    const drawn = paint(context, marks, theme);
    if (!selected) return drawn;
    paintFocus(context, theme, ...boxOf(selected));
    return drawn + 1;
  }

  // ---- mouse and keyboard ----

  plot.addEventListener("pointermove", (event) => point(under(stage.at(event)) ?? null), { signal });
  plot.addEventListener("pointerleave", () => point(null), { signal });
  plot.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const all = parts();
      const place = selected ? all.findIndex((part) => alike(part, selected)) : -1;
      const moves = {
        ArrowLeft: actions.back,
        ArrowRight: actions.forward,
        Home: actions.first,
        End: actions.last,
        " ": actions.play,
        ArrowUp: () => point(all[Math.max(place - 1, 0)]),
        ArrowDown: () => point(all[Math.min(place + 1, all.length - 1)]),
        Escape: () => point(null),
      };
      if (!moves[event.key]) return;
      moves[event.key]();
      event.preventDefault();
      event.stopPropagation(); // or the notebook would move to another cell
    },
    { signal },
  );
  const changed = () => {
    settings = { ...model.get("settings") };
    update();
  };
  model.on("change:settings", changed);

  update();
  el.append(root);
  return () => {
    pause();
    model.off("change:settings", changed);
    stop.abort();
  };
}

export default { render };
