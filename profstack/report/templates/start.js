// Reads the page's data, puts up what is always on screen, and opens the view that is asked for.
function main() {
  const page = withEmptyParts(JSON.parse(byId("page-data").textContent));
  document.body.append(tip);
  try { drawHeader(page.facts); } catch (error) { console.error(error); }
  watchTheme();
  startViews(page);
}

function drawStepTable(page) {
  if (!page.tables.steps) { if (byId("step-table")) byId("step-table").remove(); return; }
  makeTable(byId("step-table"), { table: page.tables.steps, name: "steps", sort: { key: "wall_s", direction: -1 }, bars: ["wall_s"], barColour: "var(--self)" });
}

function drawOperators(page) {
  const detail = page.tables.operators;
  if (!detail) { drop("operators"); return; }
  const bars = ["self_s", "device_s"];
  const sort = { key: "self_s", direction: -1 };
  const boxes = { name: el("div"), each: el("div", { hidden: true }) };
  makeTable(boxes.name, { table: page.tables.operators_by_name, name: "operators", sort, bars, barColour: "var(--self)" });
  makeTable(boxes.each, { table: detail, name: "operators, shapes, modules", sort, bars, barColour: "var(--self)" });
  append(byId("operator-table"), [choice("rows", [["name", "by operator"], ["each", "by shapes and module"]], "name", (kind) => {
    for (const [name, box] of Object.entries(boxes)) box.hidden = name !== kind;
  }), boxes.name, boxes.each]);
}

function drawKernels(page) {
  makeTable(byId("kernel-table"), { table: page.tables.kernels, name: "kernels", view: "kernels", keyOf: (record) => record.name, sort: { key: "device_s", direction: -1 }, bars: ["device_s"], barColour: "var(--self)" });
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
