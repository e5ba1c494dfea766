// Sets the colour theme before the first paint: the person's choice, else the system's. A classic script, so that it blocks.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try { return localStorage.getItem("cutline-theme"); } catch { return null; }
  };
  const apply = () => { root.dataset.theme = chosen() ?? (dark.matches ? "dark" : "light"); };
  dark.addEventListener("change", apply);
  window.cutlineTheme = {
    toggle() {
      const next = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("cutline-theme", next); } catch { /* private window: for this page only */ }
      root.dataset.theme = next;
      dispatchEvent(new Event("cutline-theme"));
    },
  };
  apply();
})();
