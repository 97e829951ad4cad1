// What moves animated pictures: a clock, and buttons.

/**
 * A clock. While it runs, each frame calls `advance(ms, isReduced)` with the time since the last call, then
 * `show()`; it stops when `advance` returns false. For readers who prefer reduced motion it advances only
 * every `stillMs`. Returns { start, stop, isRunning (to read), isReduced() }.
 */
function frameClock({ advance, show, stillMs, signal }) {
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  let pending = 0; // the next animation frame, 0 while it is stopped
  const stop = () => {
    cancelAnimationFrame(pending);
    pending = 0;
  };
  const start = () => {
    stop();
    let before = performance.now();
    const tick = (now) => {
      const passed = Math.max(now - before, 0);
      const waits = reduced.matches && passed < stillMs;
      if (!waits) before = now;
      pending = waits || advance(passed, reduced.matches) ? requestAnimationFrame(tick) : 0;
      show();
    };
    pending = requestAnimationFrame(tick);
    show();
  };
  signal.addEventListener("abort", stop);
  return {
    start,
    stop,
    get isRunning() {
      return pending !== 0;
    },
    isReduced: () => reduced.matches,
  };
}

/** A button that plays and pauses. `show(isPlaying)` sets its icon and label. */
function playButton() {
  const [play, pause] = [icon("M2 1v12l11-6z"), icon("M2 1h4v12h-4zM8 1h4v12h-4z")];
  const node = button("Play (space)", play);
  const show = (isPlaying) => {
    node.replaceChildren(isPlaying ? pause : play);
    node.title = isPlaying ? "Pause (space)" : "Play (space)";
    node.setAttribute("aria-label", node.title);
  };
  return { node, show };
}

/**
 * Buttons to move step by step. `actions`: { first, back, play, forward, last }.
 * Returns { node, keys, show({ isPlaying, isFirst, isLast }) }; `keys` are for handleKeys.
 */
function stepButtons(actions, signal) {
  const play = playButton();
  const buttons = {
    first: button("To the start (Home)", icon("M2 2h2v10h-2zM12 2v10l-8-5z")),
    back: button("One step back (left arrow)", icon("M11 2v10l-8-5z")),
    play: play.node,
    forward: button("One step forward (right arrow)", icon("M3 2v10l8-5z")),
    last: button("To the end (End)", icon("M2 2v10l8-5zM10 2h2v10h-2z")),
  };
  for (const [name, node] of Object.entries(buttons)) {
    node.addEventListener("click", actions[name], { signal });
  }
  const node = make("div", { class: "shardlab-controls", role: "toolbar", "aria-label": "Steps" }, ...Object.values(buttons));
  const keys = {
    ArrowLeft: actions.back, ArrowRight: actions.forward, " ": actions.play,
    Home: actions.first, End: actions.last,
  };
  const show = ({ isPlaying, isFirst, isLast }) => {
    play.show(isPlaying);
    buttons.first.disabled = buttons.back.disabled = isFirst;
    buttons.last.disabled = buttons.forward.disabled = isLast;
  };
  return { node, keys, show };
}
