// What every kind of page does when it opens: its data, the header, light or dark, and paper.

import { byId, tip } from "./dom.js";
import { startViews, withEmptyParts } from "./views.js";

// `views(page)` are those of the navigation in order, `drawHeader(page)` fills the line above them.
export function startPage(views, drawHeader) {
  const page = withEmptyParts(JSON.parse(byId("page-data").textContent));
  document.body.append(tip);
  try {
    drawHeader(page);
  } catch (error) {
    console.error(error);
  }
  watchTheme();
  openForPrint();
  startViews(views(page), page);
}

// Opens what is folded in the view on screen while it is printed: paper cannot be unfolded.
function openForPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".view:not([hidden]) details:not([open])")].filter(
      (one) => !one.closest("details details"),
    );
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
}

function watchTheme() {
  byId("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try {
      window.localStorage.setItem("profstack-theme", chosen);
    } catch {
      /* a page from a file may have no storage */
    }
  });
}
