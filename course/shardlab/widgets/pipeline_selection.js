// Which slot of the pipeline schedules the arrow keys select. A slot is { panel, device, index }.

/** The slot `across` places further in its row, or the one nearest in time `down` rows below; null if none is drawn. */
function nextSlot(panels, selected, across, down) {
  const rows = panels.flatMap(({ slots }, panel) =>
    (slots ?? []).flatMap((row, device) => (row.length ? [[panel, device]] : [])),
  );
  if (!rows.length) return null;
  if (!selected) return { panel: rows[0][0], device: rows[0][1], index: 0 };
  const { panel, device, index } = selected;
  if (across) {
    const last = panels[panel].slots[device].length - 1;
    return { panel, device, index: clamp(index + across, 0, last) };
  }
  const at = rows.findIndex(([a, b]) => a === panel && b === device);
  return nearestSlot(panels, selected, ...rows[clamp(at + down, 0, rows.length - 1)]);
}

/** The slot in a row that is nearest in time to the selected one. */
function nearestSlot(panels, selected, panel, device) {
  const startOf = (slot) => panels[slot.panel].slots[slot.device][slot.index].start;
  const off = (slot) => Math.abs(startOf(slot) - startOf(selected));
  const slots = panels[panel].slots[device].map((_, index) => ({ panel, device, index }));
  return slots.reduce((best, slot) => (off(slot) < off(best) ? slot : best));
}
