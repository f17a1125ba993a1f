// Reads the page's data, shows what is always on screen, and opens the view of the address.

import { benchmarkView } from "./benchmark.js";
import { byId, tip } from "./dom.js";
import { flopsView } from "./flops.js";
import { memoryView } from "./memory.js";
import { environmentView, glossaryView, layersView, methodView } from "./method.js";
import { modulesView } from "./modules.js";
import { nsysView } from "./nsys.js";
import { kernelsView, operatorsView } from "./operators.js";
import { drawHeader, overviewView } from "./overview.js";
import { pythonView } from "./python.js";
import { rangesView } from "./ranges.js";
import { sourceView } from "./source.js";
import { startViews, withEmptyParts } from "./views.js";

// In the order of the navigation.
const VIEWS = [
  overviewView,
  modulesView,
  operatorsView,
  kernelsView,
  pythonView,
  sourceView,
  memoryView,
  flopsView,
  benchmarkView,
  rangesView,
  nsysView,
  layersView,
  methodView,
  environmentView,
  glossaryView,
];

function main() {
  const page = withEmptyParts(JSON.parse(byId("page-data").textContent));
  document.body.append(tip);
  try {
    drawHeader(page.facts);
  } catch (error) {
    console.error(error);
  }
  watchTheme();
  openForPrint();
  startViews(VIEWS, page);
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

main();
