// The quantization grid: numbers and marks come from quantization_grid_marks.js; this file has the
// controls and the selected block.

function build(model, signal) {
  const scene = model.get("scene");
  let settings = { ...model.get("settings") };
  let found = null; // of gridQuantize

  const listed = (name, label, values, format) => listSlider({
    label, values, value: settings[name], format, onInput: (value) => change({ [name]: value }), signal,
  });
  const sliders = {
    bits: listed("bits", "Bits", scene.bits, String),
    block: listed("block", "Block size", scene.blocks, formatCount),
    outlier: listed("outlier", "Outlier", scene.outliers, (times) => (times ? `${times}× the rms` : "none")),
  };
  const codes = choice({
    label: "Codes", options: [["int", "int4"], ["nf4", "NF4"]], value: settings.codes,
    onInput: (value) => change({ codes: value }), signal,
  });
  const to = (block) => change({ weight: clamp(block, 0, found.blocks.length - 1) * settings.block });
  const step = (by) => to(Math.floor(settings.weight / settings.block) + by);
  const shown = () => Math.floor(settings.weight / settings.block);
  const describe = (index) => {
    const { scale, used, error } = found.blocks[index];
    return `block ${index + 1} of ${found.blocks.length}: scale ${scale.toFixed(4)}, ${used.size} of ` +
      `${found.points.length} code points in use, error ${gridPercent(error)}`;
  };
  /** The block whose bar is at this point of the plot, or null. */
  const blockAt = ({ x, y }) => {
    const [top, bottom] = scene.block_bars;
    if (y < top || y > bottom || x < scene.left || x >= scene.width) return null;
    return Math.floor(((x - scene.left) / (scene.width - scene.left)) * found.blocks.length);
  };
  const { root, plot, stage, refresh, mark } = frame({
    name: "quantization-grid", title: "Weights, code points and blocks", scene,
    controls: [[...Object.values(sliders), codes].map(({ node }) => node)], draw, signal,
    label:
      "Weights, code points and blocks. Left and right arrow keys go from block to block, Home and End to the " +
      "first and last.",
    small: `${scene.small} Hover over a bar for its block. Click on it, or use the arrow keys, to select one.`,
    headings: () => ["block", "scale", "code points in use", "error"],
    rows: () => found.blocks.map(({ scale, used, error }, index) =>
      [index + 1, scale.toFixed(4), `${used.size} of ${found.points.length}`, gridPercent(error)]),
    point: (at) => mark(describe((at && blockAt(at)) ?? shown())),
    keys: () => ({
      ArrowLeft: () => step(-1), ArrowRight: () => step(1),
      Home: () => to(0), End: () => to(found.blocks.length - 1),
    }),
  });

  /** Called when the reader changes something. NF4 has 4 bits. */
  function change(some) {
    const next = { ...settings, ...some };
    show({ ...next, codes: next.bits === 4 ? next.codes : "int" });
    setTraits(model, { settings });
  }

  function show(next) {
    settings = next;
    found = gridQuantize(scene, settings);
    for (const [name, { set }] of Object.entries(sliders)) set(settings[name]);
    codes.set(settings.codes);
    codes.node.hidden = settings.bits !== 4;
    const described = describe(shown());
    Object.assign(root.dataset, {
      bits: settings.bits, codes: settings.codes, block: settings.block, outlier: settings.outlier,
      shown: shown(), error: found.error, bitsPerWeight: found.bitsPerWeight, bytes: found.bytes,
    });
    refresh(`${gridSummary(found, settings)}. ${described}`);
    mark(described);
  }

  function draw(context, theme) {
    return found ? paint(context, gridMarks(scene, found, settings), theme) : 0;
  }

  handleDrag(plot, stage, (at) => {
    const block = blockAt(at);
    if (block !== null) to(block);
  }, signal);
  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);
  show(settings);
  return root;
}

export default widget(build);
