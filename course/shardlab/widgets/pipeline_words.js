// The pipeline schedules in words.

const COST_NAMES = {
  forward: "forward", backward_input: "input gradient", backward_weight: "weight gradient", send: "send",
};
const COSTS = Object.keys(COST_NAMES);

const KINDS = { F: "forward", B: "backward", I: "input gradient", W: "weight gradient" };

function describeSlot({ title, slots, v }, { device, index }, unitS) {
  const { kind, stage, microBatch, start, end } = slots[device][index];
  const where = v > 1 ? `device ${device}, stage ${stage}` : `device ${device}`;
  return (
    `${title}: ${where}, ${KINDS[kind]} of micro-batch ${microBatch}, ` +
    `from ${formatPipelineTime(start, unitS)} to ${formatPipelineTime(end, unitS)}; ` +
    `then ${formatShare(heldAt(slots[device], end), v)} in flight`
  );
}

/** If the settings are no longer those of the run: why measured rows are missing or differ. */
function aboutMeasured({ given, measured, names, unit_s: unitS }, settings, { panels }) {
  const ran = settings.shown.filter((name) => measured[name]);
  const isDrawn = (name) => panels.some((panel) => panel.isMeasured && panel.name === name);
  const gone = ran.filter((name) => !isDrawn(name)).map((name) => names[name]);
  if (gone.length) {
    return (
      `No measured rows of ${gone.join(", ")}: the ranks ran p = ${given.p}, m = ${given.m}, ` +
      `v = ${given.v}, which gives a different order of actions.`
    );
  }
  if (ran.length && COSTS.some((name) => settings[name] !== given[name])) {
    const each = COSTS.map((name) => `${COST_NAMES[name]} ${formatPipelineTime(given[name], unitS)}`).join(", ");
    return `The measured rows do not follow these sliders: the ranks ran with ${each}.`;
  }
  return "";
}
