// Puts everything in its place. One part that fails says so where it stands and spoils no other.
function main() {
  const page = JSON.parse(byId("page-data").textContent);
  document.body.append(tip);
  const parts = [
    ["top", () => drawHeader(page.facts)],
    ["benchmark", () => { drawBenchmark(page); drawMeasured(page); drawFacts(page.facts); drawComposition(page.composition); }],
    ["warnings", () => drawWarnings(page.facts)],
    ["findings", () => drawFindings(page.facts)],
    ["throughput", () => drawThroughput(page)],
    ["compare", () => drawCompare(page)],
    ["mistakes", () => drawMistakes(page)],
    ["ablation", () => drawAblation(page)],
    ["steps", () => { drawSteps(page); drawStepTable(page); }],
    ["layers", () => { if (page.bench.measured && !(page.facts.layers || []).length) { drop("layers"); return; } drawLayers(page); drawTimeline(page); drawSliceTable(page); }],
    ["modules", () => drawModules(page)],
    ["flops", () => drawFlops(page)],
    ["roofline", () => drawRoofline(page)],
    ["operators", () => drawOperators(page)],
    ["launches", () => drawLaunches(page)],
    ["functions", () => { drawFunctions(page); drawCallPaths(page); }],
    ["lines", () => drawLines(page)],
    ["memory", () => { drawMemory(page); drawOwners(page); drawMemoryLines(page); }],
    ["regions", () => drawRegions(page)],
    ["threads", () => drawThreads(page)],
    ["watch", () => drawWatch(page)],
    ["more", () => drawMore(page)],
    ["files", () => drawArtifacts(page)],
  ];
  for (const [id, draw] of parts) {
    try { draw(); } catch (error) {
      console.error(error);
      const section = byId(id) || document.body;
      section.append(el("p", { class: "broken" }, "This part could not be drawn: " + error.message + ". The figures are in report.json."));
    }
  }
  watchTheme();
  watchSections();
  keepWaysInside();
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

// Tables that only some layers fill.
const MORE = [
  ["ranges", "NVTX ranges", "emit_s", "Ranges emitted for a listener such as Nsight Systems: how often per step, and what emitting them took. One that is open at the end of a step is closed there and opened again: it counts once in each of the two."],
  ["kernels", "Kernels", "device_s", "What ran on the device, per step."],
];

function drawMore(page) {
  const there = MORE.filter(([name]) => page.tables[name]);
  if (!there.length) { drop("more"); return; }
  for (const [name, title, key, lead] of there) {
    const box = el("div");
    byId("more-tables").append(el("h3", {}, title), el("p", { class: "lead" }, lead), box);
    makeTable(box, { table: page.tables[name], name, sort: { key, direction: -1 }, bars: [key], barColour: "var(--self)" });
  }
}

function watchTheme() {
  byId("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { window.localStorage.setItem("profstack-theme", chosen); } catch (error) { /* a page from a file may have no storage */ }
  });
}

// In a notebook the page is the text of a frame, whose addresses are those of the notebook around it.
function keepWaysInside() {
  if (window.location.protocol !== "about:") return;
  document.addEventListener("click", (event) => {
    const way = event.target.closest("a[href]");
    if (!way) return;
    // Files beside the recording cannot be opened from there either.
    event.preventDefault();
    const aim = way.getAttribute("href");
    if (aim.startsWith("#") && byId(aim.slice(1))) byId(aim.slice(1)).scrollIntoView();
  });
}

// The navigation says which section is on screen.
function watchSections() {
  const ways = new Map([...document.querySelectorAll("nav a[href^='#']")].map((way) => [way.getAttribute("href").slice(1), way]));
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const way = ways.get(entry.target.id);
      if (way && entry.isIntersecting) {
        for (const other of ways.values()) other.removeAttribute("aria-current");
        way.setAttribute("aria-current", "true");
      }
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of ways.keys()) if (byId(id)) observer.observe(byId(id));
}

main();
