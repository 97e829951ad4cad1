// The memory bars in words.

const exactIn = (unit) => (bytes) => {
  const whole = `${Math.round(bytes).toLocaleString("en-US")} bytes`;
  return bytes < 1000 ? whole : `${sizeIn(unit)(bytes)} (${whole})`;
};

/** Whether the stage fits: { words: nodes, fits ("" without a capacity), largest (model that fits) }. */
function verdictOn({ capacity_bytes: capacity, costs }, settings, rows) {
  const { stage, worldSize: n, unit } = settings;
  const formatSize = sizeIn(unit);
  const other = opposite(stage);
  const device = rows[stage].bytes;
  const usage =
    `Stage ${stage}: ${formatSize(device)} on ${n === 1 ? "the device" : `each of ${n} devices`}, ` +
    `stage ${other}: ${formatSize(rows[other].bytes)}`;
  const limits = offloadLimits(settings);
  if (capacity === null) return { words: [`${usage}.${limits}`], fits: "" };
  const fits = device <= capacity;
  const largest = largestModel(capacity, settings, costs);
  const limit = Number.isFinite(largest)
    ? ` Largest model that fits: ${formatCount(largest)} parameters.`
    : " With everything on the host, the device sets no limit.";
  const word = make("strong", {}, fits ? "✓ Fits. " : "✗ Does not fit. ");
  const room = fits
    ? `${formatSize(capacity - device)} of ${formatSize(capacity)} left.`
    : `Exceeds ${formatSize(capacity)} by ${formatSize(device - capacity)}.`;
  return { words: [word, `${usage}. ${room}${limit}${limits}`], fits: fits ? "yes" : "no", largest };
}

/** A note if this stage cannot offload what the settings request. */
function offloadLimits({ stage, offload }) {
  if (offload === "none") return "";
  if (stage === 0) return " Stage 0 shards nothing, so nothing is offloaded.";
  if (stage < 3 && offload !== "optimizer") return " Only stage 3 offloads parameters.";
  return "";
}

function summarizeBars({ parameters, worldSize, precision, optimizer, offload, unit }, rows) {
  const bars = rows.map(({ label, bytes }) => `${label} ${sizeIn(unit)(bytes)}`).slice(0, 24).join(", ");
  return `Memory bars: ${formatCount(parameters)} parameters, ${worldSize} ranks, ${precision}, ${optimizer}, offload ${offload}. ${bars}.`;
}

/** A row, or with `part` >= 0 one of its parts: [in words, its values]. */
function describeBar(scene, settings, row, part) {
  const exactly = exactIn(settings.unit);
  const { key, label, measured, bytes, parts } = row;
  const where = measured ? `measured, ${label}` : label === "host" ? "host, per rank" : `${label}, each rank's device`;
  if (part < 0) {
    const all = parts.filter(([, size]) => size > 0).map(([name, size]) => `${name} ${sizeIn(settings.unit)(size)}`);
    const text = `${where}: ${exactly(bytes)}${all.length ? ` = ${all.join(" + ")}` : ""}`;
    return [text, { selected: key, selectedBytes: bytes }];
  }
  const [category, size] = parts[part];
  const formula = measured || !size ? "" : `, ${formulaOf(scene, settings, row, category)}`;
  return [
    `${where}: ${category} ${exactly(size)}${formula}`, { selected: `${key}:${category}`, selectedBytes: size },
  ];
}

/** The formula of a predicted part: 12 bytes × Ψ/64. */
function formulaOf({ costs }, { stage: chosen, precision, optimizer, worldSize }, { stage = chosen, label }, category) {
  const [parameter, gradient, master] = costs.precision[precision];
  const each = { parameters: parameter, gradients: gradient, optimizer: master + costs.optimizer[optimizer] };
  const shardedFrom = { parameters: 3, gradients: 2, optimizer: 1 };
  const bytes = Number(each[category].toFixed(3));
  const sharded = stage >= shardedFrom[category] || label === "host";
  return `${bytes} bytes × ${sharded && worldSize > 1 ? `Ψ/${worldSize}` : "Ψ"}`;
}
