// What JupyterLab adds to a page: buttons to openers, and widgets in place of some pictures, neither of which needs a
// kernel; and another try for widgets that come late.

const OPENER = '.jp-RenderedMarkdown img[src*="/openers/"]';
const LIVE = /\/live\/([a-z_]+)\.svg/;

/** What a widget's module expects of anywidget, with the state in this page only. */
class Model {
  #state;
  #listeners = new Map();

  constructor(state) {
    this.#state = { ...state };
  }

  get(name) {
    return this.#state[name];
  }

  set(name, value) {
    this.#state[name] = value;
    for (const listener of this.#listeners.get(`change:${name}`) ?? []) listener();
  }

  save_changes() {}

  on(event, listener) {
    this.#listeners.set(event, [...(this.#listeners.get(event) ?? []), listener]);
  }

  off(event, listener) {
    this.#listeners.set(event, (this.#listeners.get(event) ?? []).filter((each) => each !== listener));
  }
}

/** The widgets of `live/NAME.json`, one below the other. Only what is in this extension is loaded. */
async function liveWidgets(name) {
  const response = await fetch(new URL(`live/${name}.json`, import.meta.url));
  const widgets = await response.json();
  const models = new Map(widgets.map(({ id, state }) => [id, new Model(state)]));
  const host = { getModel: (id) => models.get(id) };
  const root = make("div", { class: "shardlab-live" });
  root.addEventListener("dblclick", (event) => event.stopPropagation());
  for (const { id, module } of widgets) {
    const el = make("div");
    root.append(el);
    const { default: its } = await import(new URL(`${module}.js`, import.meta.url));
    its.render({ model: models.get(id), el, host });
  }
  return root;
}

async function openerAt(image) {
  const response = await fetch(image.src);
  const svg = response.ok && readPicture(await response.text());
  return svg && openerOf(svg, image.alt);
}

/** Puts what plays in place of an image, unless something is missing: then the image stays. */
async function replace(image, replaced) {
  const name = LIVE.exec(image.src)?.[1];
  const found = await (name ? liveWidgets(name) : openerAt(image));
  // Without buttons, a link around the picture plays it, and what must be guessed first is folded.
  const shown = image.closest(name ? "details" : "a") ?? image;
  if (!found || replaced.has(image)) return;
  replaced.add(image); // it may have been tried for two addresses
  shown.replaceWith(found);
}

/** Watches JupyterLab's page for images of ours, which may be drawn, or told their source, at any time. */
export function watch({ shell }) {
  const retry = widgetRetries(shell);
  const styles = make("link", { rel: "stylesheet", href: new URL("pages.css", import.meta.url) });
  document.head.append(styles);
  const tried = new WeakMap(); // JupyterLab replaces the path in the text by an address
  const replaced = new WeakSet();
  const look = (image) => {
    if (tried.get(image) === image.src || !/\/(openers|live)\/[^/]+\.svg/.test(image.src)) return;
    tried.set(image, image.src);
    replace(image, replaced).catch((error) => console.warn(`${image.src} stays an image:`, error));
  };
  const search = (node) => {
    retry(node);
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    if (node.matches(OPENER)) look(node);
    for (const image of node.querySelectorAll(OPENER)) look(image);
  };
  const changed = (records) => {
    for (const { target, addedNodes } of records) {
      if (target.matches?.(OPENER)) look(target);
      for (const node of addedNodes) search(node);
    }
  };
  new MutationObserver(changed).observe(document.body, { childList: true, subtree: true, attributeFilter: ["src"] });
  search(document.body);
}
