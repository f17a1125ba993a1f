// Reads the page's data, puts up what is always on screen, and opens the view that is asked for.
function main() {
  const page = withEmptyParts(JSON.parse(byId("page-data").textContent));
  document.body.append(tip);
  try { drawHeader(page.facts); } catch (error) { console.error(error); }
  watchTheme();
  openForPrint();
  startViews(page);
}

// On paper nothing can be unfolded: what is folded in the view on screen is open while it is printed.
function openForPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".view:not([hidden]) details:not([open])")].filter((one) => !one.closest("details details"));
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
}

function drawStepTable(page) {
  if (!page.tables.steps) { if (byId("step-table")) byId("step-table").closest("details").remove(); return; }
  makeTable(byId("step-table"), { table: page.tables.steps, name: "steps", sort: { key: "wall_s", direction: -1 }, bars: ["wall_s"], barColour: "var(--self)" });
}

function drawRanges(page) {
  if (!page.tables.ranges) { drop("nvtx-ranges"); return; }
  makeTable(byId("range-table"), { table: page.tables.ranges, name: "ranges", view: "ranges", keyOf: (record) => record.name, sort: { key: "emit_s", direction: -1 }, bars: ["emit_s"], barColour: "var(--self)" });
}

function watchTheme() {
  byId("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { window.localStorage.setItem("profstack-theme", chosen); } catch (error) { /* a page from a file may have no storage */ }
  });
}

main();
