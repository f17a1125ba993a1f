(() => {
  // Before anything is drawn, so that a dark page never flashes white.
  let stored = null;
  try {
    stored = window.localStorage.getItem("profstack-theme");
  } catch {
    stored = null;
  }
  const dark = window.matchMedia?.("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = stored || (dark?.matches ? "dark" : "light");
  if (dark?.addEventListener) {
    dark.addEventListener("change", (event) => {
      let chosen = null;
      try {
        chosen = window.localStorage.getItem("profstack-theme");
      } catch {
        chosen = null;
      }
      if (!chosen) document.documentElement.dataset.theme = event.matches ? "dark" : "light";
    });
  }
})();
