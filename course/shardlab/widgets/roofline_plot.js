// The roofline plot: Python computes all marks and words; this file has the slider and the selection.

function build(model, signal) {
  const scene = model.get("scene");
  const values = scene.moving.map(({ at }) => at);
  let { at } = model.get("settings");
  let selected = null; // an index of points()

  const moving = () => scene.moving.filter((item) => item.at === at);
  const points = () => [...scene.points, ...moving()];
  const control = values.length && listSlider({
    label: scene.slider, values, value: at, format: (value) => value.toLocaleString("en-US"),
    onInput: (next) => (show(next), setTraits(model, { settings: { at } })), signal,
  });
  const { root, refresh, mark } = frame({
    name: "roofline-plot", title: "Roofline", scene, small: scene.small, draw, keys, signal,
    controls: control ? [[control.node]] : [],
    label:
      "Roofline. Left and right arrow keys go from point to point, Home and End to the first and last, Escape " +
      "clears the selection.",
    hint: "Hover over a point, or use the arrow keys, for its numbers.",
    headings: () => scene.headings,
    rows: () => [...scene.points, ...scene.moving].map(({ row }) => row),
    point: (pointer) => select(pointer && under(pointer)),
  });

  function show(next) {
    at = next;
    control?.set?.(at);
    if (at !== null) root.dataset.at = at;
    refresh([scene.roofs, ...points().map(({ text }) => `${text}.`)].join(" "));
    select(selected);
  }

  /** With nothing selected, the words are about the point that the slider moves. */
  function select(index) {
    selected = index;
    const [item = null] = index === null ? moving() : [points()[index]];
    const name = index === null ? {} : { selected: item.name };
    mark(item?.text ?? "", item ? { ...name, intensity: item.intensity } : {});
  }

  function under({ x, y }) {
    const near = points().findIndex(({ spots }) =>
      spots.some(([left, top]) => Math.hypot(left - x, top - y) <= scene.radius + 5));
    return near < 0 ? null : near;
  }

  function keys() {
    const last = points().length - 1;
    const to = (index) => () => select(clamp(index, 0, last));
    return {
      ArrowLeft: to((selected ?? last + 1) - 1), ArrowRight: to((selected ?? -1) + 1), Home: to(0), End: to(last),
      Escape: () => select(null),
    };
  }

  function draw(context, theme) {
    let drawn = paint(context, scene.background, theme);
    for (const { marks } of moving()) drawn += paint(context, marks, theme);
    const size = 2 * scene.radius + 6;
    const chosen = selected === null ? [] : points()[selected].spots;
    for (const [x, y] of chosen) paintFocus(context, theme, x - size / 2, y - size / 2, size, size);
    return drawn;
  }

  onTraits(model, ["settings"], () => show(model.get("settings").at), signal);
  show(at);
  return root;
}

export default widget(build);
