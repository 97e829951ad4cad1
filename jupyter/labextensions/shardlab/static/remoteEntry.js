// JupyterLab loads this file and asks it for the extension, as it would ask a bundle of webpack.

(() => {
  const here = document.currentScript.src;
  const extension = async () => {
    const { watch } = await import(new URL("pages.js", here));
    const plugin = { id: "shardlab:pages", autoStart: true, activate: watch };
    return () => ({ __esModule: true, default: plugin });
  };
  const extensions = (window["_JUPYTERLAB"] ??= {}); // JupyterLab's name for them
  extensions.shardlab = { init: () => {}, get: extension };
})();
