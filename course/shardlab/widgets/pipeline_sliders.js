// The sliders of the pipeline schedules: sizes of the pipeline, and times of its actions.

/** { sliders by setting, the nodes of the two groups }. `change({ setting: value })` is called when a reader moves one. */
function pipelineSliders({ scene, settings, formatTime, change, signal }) {
  const setting = (name) => ({ value: settings[name], onInput: (value) => change({ [name]: value }), signal });
  const whole = (name, label) => slider({ label, min: 1, max: scene.max[name], ...setting(name) });
  const cost = (name, label) => listSlider({ label, values: scene.costs[name], format: formatTime, ...setting(name) });
  const sliders = {
    p: whole("p", "Devices p"),
    m: whole("m", "Micro-batches m"),
    v: whole("v", "Chunks v"),
    forward: cost("forward", "Forward"),
    backward_input: cost("backward_input", "Backward, input"),
    backward_weight: cost("backward_weight", "Backward, weights"),
    send: cost("send", "Send"),
  };
  for (const [name, { node }] of Object.entries(sliders)) node.dataset.setting = name;
  const group = (label, names, shape) => make(
    "div", { class: `shardlab-settings ${shape}`, role: "group", "aria-label": label },
    ...names.map((name) => sliders[name].node),
  );
  return {
    sliders,
    sizes: group("Size of the pipeline", ["p", "m", "v"], "shardlab-thirds"),
    costs: group("Time of each action", COSTS, ""),
  };
}
