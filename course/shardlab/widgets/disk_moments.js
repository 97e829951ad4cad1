// Disk moments: marks and texts come from disk_moments.py; this file has the save and the moment.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, top } = scene.strip;
  let save = null; // one of scene.saves
  let moment = 0; // index

  const saves = choice({
    label: "save", options: scene.saves.map((each) => [each.save, each.save]), value: scene.saves[0].save,
    onInput: (name) => send({ save: name, moment: 0 }), signal,
  });
  const moments = slider({
    label: "moment", min: 0, max: 1, value: 0, onInput: (index) => send({ save: save.save, moment: index }), signal,
  });
  const to = (index) => send({ save: save.save, moment: index });
  const { root, sub, plot, stage, refresh, mark } = frame({
    name: "disk-moments", title: "The disk while ranks save", scene, controls: [[saves.node, moments.node]], draw, signal,
    label: "The disk, moment by moment. Left and right arrow keys go through the moments, Home and End to the first and last.",
    headings: () => ["moment", "change", ...Object.values(scene.failures)],
    rows: () => save.moments.map(({ text, found }, index) =>
      [index, text, ...Object.keys(scene.failures).map((key) => verdict(found[key]))]),
    keys: () => ({
      ArrowLeft: () => to(moment - 1), ArrowRight: () => to(moment + 1),
      Home: () => to(0), End: () => to(save.moments.length - 1),
    }),
  });

  function verdict([state, text]) {
    return state === "broken" ? `cannot load (${text})` : `${state}: steps ${text}`;
  }

  function show({ save: name, moment: index }) {
    if (save?.save !== name) {
      save = scene.saves.find((each) => each.save === name);
      saves.set(name);
      moments.input.max = save.moments.length - 1;
    }
    moment = clamp(index, 0, save.moments.length - 1);
    moments.set(moment);
    const { text, found } = save.moments[moment];
    sub.textContent = `moment ${moment} of ${save.moments.length - 1}`;
    const states = Object.entries(scene.failures).map(([key, failure]) => `${failure}: ${verdict(found[key])}`);
    const described = [text, ...states].join(" · ");
    refresh(`${name}. ${described}`);
    mark(described, { save: name, moment, kill: found.kill[0], power: found.power[0] });
  }

  function send(settings) {
    show(settings);
    setTraits(model, { settings: { save: save.save, moment } });
  }

  function draw(context, theme) {
    if (!save) return 0;
    const drawn = paint(context, save.moments[moment].marks, theme) + paint(context, save.strips, theme);
    const step = (right - left) / save.moments.length;
    paintFocus(context, theme, left + moment * step, top, step, 2 * scene.strip_height - 2);
    return drawn;
  }

  handleDrag(plot, stage, ({ x, y }) => {
    if (y < top || y > top + 2 * scene.strip_height || x < left) return;
    to(Math.floor(((x - left) / (right - left)) * save.moments.length));
  }, signal);
  onTraits(model, ["settings"], () => show(model.get("settings")), signal);
  show(model.get("settings"));
  return root;
}

export default widget(build);
