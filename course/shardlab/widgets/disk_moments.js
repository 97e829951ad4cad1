// Disk moments: marks and texts come from disk_moments.py; this file has the way and the moment.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, top } = scene.strip;
  let way = null; // one of scene.ways
  let moment = 0; // index

  const { root, head, plot, detail } = card({
    name: "disk-moments", title: "The disk while ranks save",
    label: "The disk, moment by moment. Left and right arrow keys go through the moments, Home and End to the first and last.",
  });
  const place = make("span", { class: "shardlab-sub" });
  head.append(place);
  const ways = choice({
    label: "save", options: scene.ways.map((each) => [each.way, each.way]), value: scene.ways[0].way,
    onInput: (name) => send({ way: name, moment: 0 }), signal,
  });
  const moments = slider({
    label: "moment", min: 0, max: 1, value: 0, onInput: (index) => send({ way: way.way, moment: index }), signal,
  });
  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const controls = make("div", { class: "shardlab-settings" }, ways.node, moments.node);
  const table = tableDetails(
    () => ["moment", "change", ...Object.values(scene.failures)],
    () => way.moments.map(({ text, found }, index) =>
      [index, text, ...Object.keys(scene.failures).map((key) => verdict(found[key]))]),
    signal,
  );
  root.append(head, stickyControls(controls), plot, detail, table.node);

  function verdict([state, text]) {
    return state === "broken" ? `cannot load (${text})` : `${state}: steps ${text}`;
  }

  function show({ way: name, moment: index }) {
    if (way?.way !== name) {
      way = scene.ways.find((each) => each.way === name);
      ways.set(name);
      moments.input.max = way.moments.length - 1;
      table.renew();
    }
    moment = clamp(index, 0, way.moments.length - 1);
    moments.set(moment);
    const { text, found } = way.moments[moment];
    place.textContent = `moment ${moment} of ${way.moments.length - 1}`;
    detail.textContent = `${text} · ` +
      Object.entries(scene.failures).map(([key, failure]) => `${failure}: ${verdict(found[key])}`).join(" · ");
    Object.assign(root.dataset, { way: name, moment, kill: found.kill[0], power: found.power[0] });
    stage.canvas.setAttribute("aria-label", `${name}. ${detail.textContent}`);
    stage.redraw();
  }

  function send(settings) {
    show(settings);
    setTraits(model, { settings: { way: way.way, moment } });
  }

  function draw(context, theme) {
    if (!way) return 0;
    const drawn = paint(context, way.moments[moment].marks, theme) + paint(context, way.strips, theme);
    const step = (right - left) / way.moments.length;
    paintFocus(context, theme, left + moment * step, top, step, 2 * scene.strip_height - 2);
    return drawn;
  }

  const to = (index) => send({ way: way.way, moment: index });
  const at = ({ x, y }) => {
    if (y < top || y > top + 2 * scene.strip_height || x < left) return;
    to(Math.floor(((x - left) / (right - left)) * way.moments.length));
  };
  plot.addEventListener("pointerdown", (event) => at(stage.at(event)), { signal });
  plot.addEventListener("pointermove", (event) => event.buttons && at(stage.at(event)), { signal });
  handleKeys(plot, () => ({
    ArrowLeft: () => to(moment - 1), ArrowRight: () => to(moment + 1),
    Home: () => to(0), End: () => to(way.moments.length - 1),
  }), signal);
  onTraits(model, ["settings"], () => show(model.get("settings")), signal);
  show(model.get("settings"));
  return root;
}

export default widget(build);
