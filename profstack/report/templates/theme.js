(function () {
  "use strict";
  // Before anything is drawn, so that a dark page never flashes white.
  var stored = null;
  try { stored = window.localStorage.getItem("profstack-theme"); } catch (error) { stored = null; }
  var dark = window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = stored || (dark && dark.matches ? "dark" : "light");
  if (dark && dark.addEventListener) {
    dark.addEventListener("change", function (event) {
      var chosen = null;
      try { chosen = window.localStorage.getItem("profstack-theme"); } catch (error) { chosen = null; }
      if (!chosen) document.documentElement.dataset.theme = event.matches ? "dark" : "light";
    });
  }
})();
