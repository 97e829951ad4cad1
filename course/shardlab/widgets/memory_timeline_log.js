// The log of one rank, as memory_timeline.py sends it: what was live at which moment.

const sum = (counts) => counts.reduce((a, b) => a + b, 0);

class MemoryLog {
  constructor(log, categories) {
    Object.assign(this, log);
    this.categories = categories;
    this.peakEntry = this.entryAt(log.peak_s);
  }

  /** The last entry at or before this time; -1 before the first. */
  entryAt(time) {
    let [low, high] = [0, this.times_s.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times_s[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The bytes of each category at an entry. */
  countsOf(index) {
    return index < 0 ? this.categories.map(() => 0) : this.bytes.map((row) => row[index]);
  }

  listed(counts) {
    return this.categories
      .map(([name], row) => [name, counts[row]])
      .filter(([, count]) => count > 0)
      .map(([name, count]) => `${name} ${formatBytes(count)}`)
      .join(", ") || "nothing";
  }

  /** A time as text, relative to the 0 of the axis. */
  sinceZero(time) {
    const seconds = time - this.zero_s;
    return seconds < 0 ? `−${formatSeconds(-seconds)}` : formatSeconds(seconds);
  }

  /** The phases at this time, outer ones first. A phase that ends when another begins is not included. */
  phasesAt(time) {
    const here = this.phases.filter(([, start, end]) => start <= time && time < end);
    const names = here.length ? here : this.phases.filter(([, , end]) => end === time);
    return [...new Set(names.map(([name]) => name))];
  }

  summary(name) {
    const title = `Memory timeline of rank ${this.rank}${name && `, ${name}`}`;
    if (!this.peak_bytes) return `${title}: no tensors recorded.`;
    const at = `${this.sinceZero(this.peak_s)}${this.peak_phase && ` in ${this.peak_phase}`}`;
    return `${title}: peak ${exactBytes(this.peak_bytes)} at ${at}: ${this.listed(this.countsOf(this.peakEntry))}.`;
  }

  /** [an entry in words, its values] */
  describe(index) {
    const time = this.times_s[index];
    const counts = this.countsOf(index);
    const phases = this.phasesAt(time);
    const where = phases.length ? ` in ${phases.join(", ")}` : "";
    return [
      `${this.sinceZero(time)}${where}: ${exactBytes(sum(counts))} live: ${this.listed(counts)}`,
      { selectedS: time, selectedBytes: sum(counts), selectedPhase: phases.join(" ") },
    ];
  }

  /** The highest entry, of equal ones the first, from `first` on, `step` by `step`, while `isNear(index)`. */
  highest(first, step, isNear) {
    let best = first;
    for (let i = first; i >= 0 && i < this.times_s.length && isNear(i); i += step) {
      if (sum(this.countsOf(i)) > sum(this.countsOf(best))) best = i;
    }
    return best;
  }

  /** The next entry that is at least `apart_s` away; among entries within `apart_s` of it, the highest. */
  next(from, direction, apart_s) {
    const last = this.times_s.length - 1;
    const off = (i, j) => Math.abs(this.times_s[i] - this.times_s[j]);
    const start = clamp(from, 0, last);
    let at = from + direction;
    while (at > 0 && at < last && off(at, start) < apart_s) at += direction;
    const first = clamp(at, 0, last);
    return this.highest(first, direction, (i) => off(i, first) < apart_s);
  }

  /** The last entry of the next or previous phase, if there is one. */
  nextPhase(from, direction) {
    const ends = [...new Set(this.phases.map(([, , end]) => this.entryAt(end)))].sort((a, b) => a - b);
    return direction > 0 ? ends.find((at) => at > from) : ends.findLast((at) => at < from);
  }
}
