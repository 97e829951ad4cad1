// An opener with buttons: the animated SVG that a chapter's text shows, played twice when it is seen.

const REST_MS = 1500; // between the two rounds that it plays when it is first seen
const OF_A_PICTURE = ["svg", "title", "desc", "style", "rect", "path", "circle", "text"];

/** The element of an SVG's text, without what could run or load something: any notebook may name any file. */
function readPicture(text) {
  const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  for (const node of [...svg.querySelectorAll("*")]) {
    if (!OF_A_PICTURE.includes(node.localName)) node.remove();
  }
  for (const node of [svg, ...svg.querySelectorAll("*")]) {
    for (const { name } of [...node.attributes]) if (/^on|href$/i.test(name)) node.removeAttribute(name);
  }
  return svg.localName === "svg" && svg.dataset.playMs && svg.querySelector("style") ? svg : null;
}

/**
 * The picture and its buttons; `words` are its text alternative. The animations are CSS's: all of them are paused,
 * and set to the moment that is shown.
 */
function openerOf(svg, words) {
  const [playMs, delayMs] = [Number(svg.dataset.playMs), Number(svg.dataset.delayMs)];
  const moments = [0, ...svg.dataset.momentsMs.split(" ").map(Number), playMs];
  const { signal } = new AbortController(); // it lasts as long as its page
  const root = make("div", { class: "shardlab-widget shardlab-opener", "data-widget": "opener" });
  const plot = make("div", { class: "shardlab-plot", tabindex: "0", role: "img", "aria-label": words });
  const shadow = plot.attachShadow({ mode: "open" }); // its styles are for whole documents
  // As an image, it follows the system's theme; here JupyterLab's. It moves only when asked to.
  const style = svg.querySelector("style");
  style.textContent = style.textContent
    .replace("@media(prefers-color-scheme:dark){svg{", "@media all{svg.dark{")
    .replace("@media(prefers-reduced-motion:reduce)", "@media not all");
  Object.assign(svg.style, { display: "block", maxWidth: "100%", height: "auto" });
  shadow.append(svg);
  const steering = make("input", { type: "range", min: 0, max: playMs, step: 10, "aria-label": "Time in the recorded run" });
  let at = playMs;
  let again = 0; // how often it starts again on its own

  const advance = (ms) => {
    at += ms;
    if (again && at >= playMs + REST_MS) [again, at] = [again - 1, 0];
    if (!again) at = Math.min(at, playMs);
    return again > 0 || at < playMs;
  };
  const clock = frameClock({ advance, show, stillMs: 500, signal });

  function show() {
    svg.classList.toggle("dark", document.body.dataset.jpThemeLight === "false");
    for (const animation of shadow.getAnimations()) {
      animation.pause();
      animation.currentTime = delayMs + (at < playMs ? at : 1.1 * playMs); // after the end, the cursor is gone
    }
    const isPlaying = clock.isRunning;
    const shown = Math.min(at, playMs);
    steering.value = shown;
    steering.setAttribute("aria-valuetext", `${Math.round((100 * shown) / playMs)} %`);
    player.show({ isPlaying, isFirst: shown === 0, isLast: shown === playMs });
    Object.assign(root.dataset, { playing: isPlaying, atMs: Math.round(shown) });
  }

  function go(to) {
    clock.stop();
    [again, at] = [0, Math.min(to, playMs)];
    show();
  }

  function play() {
    if (clock.isRunning) return go(at);
    if (at === playMs) at = 0;
    clock.start();
  }

  const player = stepButtons(
    {
      first: () => go(0),
      back: () => go(moments.findLast((moment) => moment < at) ?? 0),
      play,
      forward: () => go(moments.find((moment) => moment > at) ?? playMs),
      last: () => go(playMs),
    },
    signal,
  );
  player.node.append(steering);
  steering.addEventListener("input", () => go(Number(steering.value)), { signal });
  keepKeys(steering, signal);
  for (const node of [plot, player.node]) handleKeys(node, () => player.keys, signal);
  // Two clicks on text open its editor.
  root.addEventListener("dblclick", (event) => event.stopPropagation(), { signal });
  root.append(make("div", { class: "shardlab-sticky" }, player.node), plot);

  let isNew = true;
  const seen = (entries) => {
    const { isIntersecting } = entries.at(-1);
    if (isIntersecting && isNew) {
      isNew = false;
      if (clock.isReduced()) return show();
      again = 1;
      return play();
    }
    return isIntersecting ? show() : go(at);
  };
  new IntersectionObserver(seen, { threshold: 0.6 }).observe(plot);
  new MutationObserver(show).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  show();
  return root;
}
