// The paper's formula, as in estimate/memory.py, so that sliders need no kernel; a test compares the
// two with random settings. `costs`: that module's tables of bytes by precision and optimizer.

const CATEGORIES = ["parameters", "gradients", "optimizer"];

/** { device, host }: bytes of model states on one rank, by category. */
function modelStates({ parameters, worldSize, stage, precision, optimizer, offload }, costs) {
  const [parameterBytes, gradientBytes, masterBytes] = costs.precision[precision];
  const optimizerBytes = masterBytes + costs.optimizer[optimizer];
  const shard = parameters / worldSize;
  const device = {
    parameters: parameterBytes * (stage >= 3 ? shard : parameters),
    gradients: gradientBytes * (stage >= 2 ? shard : parameters),
    optimizer: optimizerBytes * (stage >= 1 ? shard : parameters),
  };
  const host = { parameters: 0, gradients: 0, optimizer: 0 };
  const moved = offloadAt(stage, offload);
  if (moved.optimizer) {
    host.optimizer = device.optimizer;
    host.gradients = gradientBytes * shard;
    device.optimizer = 0;
    if (stage >= 2) device.gradients = 0;
  }
  if (moved.parameters) {
    host.parameters = device.parameters;
    device.parameters = 0;
  }
  return { device, host };
}

/** What a stage can offload: the optimizer from stage 1 on, parameters at stage 3. */
function offloadAt(stage, offload) {
  return {
    optimizer: stage >= 1 && (offload === "optimizer" || offload === "both"),
    parameters: stage === 3 && (offload === "parameters" || offload === "both"),
  };
}

const sumOf = (bytes) => Object.values(bytes).reduce((sum, each) => sum + each, 0);

/** The largest number of parameters whose states fit on a device; Infinity without a limit. */
function largestModel(capacityBytes, settings, costs) {
  const needed = (parameters) => sumOf(modelStates({ ...settings, parameters }, costs).device);
  const each = needed(2 ** 40) / 2 ** 40;
  if (each === 0) return Infinity;
  let largest = Math.floor(capacityBytes / each) + 1;
  while (needed(largest) > capacityBytes) largest -= 1;
  return largest;
}
