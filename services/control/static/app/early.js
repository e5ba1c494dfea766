// What must run before the first paint and before any module: the colour theme (the person's choice, else the system's), and
// another try if a module did not arrive. A classic script, so that it blocks.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("cutline-theme");
    } catch {
      return null;
    }
  };
  const apply = () => {
    root.dataset.theme = chosen() ?? (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", apply);
  window.cutlineTheme = {
    toggle() {
      const next = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("cutline-theme", next);
      } catch {
        /* private window: for this page only */
      }
      root.dataset.theme = next;
      dispatchEvent(new Event("cutline-theme"));
    },
  };
  apply();

  // Browsers give up all loads when the network changes (a laptop moves, a container starts); the page would stay empty.
  const TRIES = 3;
  addEventListener(
    "error",
    (event) => {
      if (event.target?.tagName !== "SCRIPT") return;
      const tries = Number(history.state?.tries ?? 0);
      if (tries >= TRIES) return;
      history.replaceState({ tries: tries + 1 }, "");
      setTimeout(() => location.reload(), 300 * (tries + 1));
    },
    true,
  );
})();
