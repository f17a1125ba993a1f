// The views of the page: one is on screen at a time, chosen by the address after "#", and is drawn
// when it is opened for the first time.
//
// Addresses ("#" and then):
//   modules                          a view
//   modules/Net.layer                a row or a part of it; the key is percent-encoded
//   operators?module=Net.layer       a view whose tables keep to what fits a filter
//   all                              every view, one under the other: to print, or to search as text
//   functions, term-clean            a part of a view by its id
//
// For those who draw:
//   VIEWS             {id, title, needs, has, parts}: see below; add to `parts`, or replace an entry
//   linkTo(view, key, text)          a link to a row; plain text where the page has no such view
//   linkFiltered(view, filter, text) a link to a view with a filter, as {module: "Net.layer"}
//   onKey(view, find)                find(key) marks the row of that key and says whether it did;
//                                    makeTable and makeTree do it by themselves when their spec has
//                                    `view` and `keyOf(record)`
//   onFilter(view, keep)             keep(filter) is called when the filter of the address changes
//                                    ({}: none); filterOf(view) is the one to begin with. Tables and
//                                    trees with a column `module` or `path` do it by themselves
//   data-key="view/key"              on any element: what has no table is found by it
//   drawOnce(draw, page)             for a function that two views draw from

// needs: the parts (tables and others, see packing.py) that are inflated before it is drawn.
// has(page): whether there is anything to show; without it: whether any of `shows`, or else of
// `needs`, has a row. A view that has nothing is not in the navigation.
// parts: [id of the element that says so when drawing fails, draw(page)].
const VIEWS = [
  { id: "overview", title: "Overview", needs: [], has: () => true, parts: [
    ["overview", (page) => drawOverview(page)], ["findings", (page) => { if (isImportAlone(page.facts)) drop("findings"); else drawFindings(page); }], ["trust", (page) => { if (isImportAlone(page.facts) && !page.facts.warnings.length) drop("trust"); else drawTrust(page.facts); }]] },
  { id: "modules", title: "Modules", needs: ["modules"], parts: [["modules", (page) => drawModules(page)]] },
  { id: "operators", title: "Operators", needs: ["operators", "operators_by_name", "roofline"], shows: ["operators", "operators_by_name"], parts: [["operators", (page) => drawOperators(page)]] },
  { id: "kernels", title: "Kernels", needs: ["kernels"], parts: [["kernels", (page) => drawKernels(page)]] },
  { id: "python", title: "Python", needs: ["functions", "call_paths", "call_trees", "slices"], shows: ["functions", "call_paths"], parts: [
    ["functions", (page) => { drawFunctions(page); drawCallPaths(page); }]] },
  { id: "source", title: "Source", needs: ["lines", "sources", "module_lines", "functions", "slices"], shows: ["lines"], parts: [["lines", (page) => drawLines(page)]] },
  { id: "memory", title: "Memory", needs: ["memory", "memory_owners", "peak_holders", "memory_lines", "slices"], shows: ["memory", "memory_owners", "peak_holders", "memory_lines"], parts: [
    ["memory", (page) => { drawMemory(page); drawOwners(page); drawMemoryLines(page); }]] },
  { id: "flops", title: "FLOPs and roofline", needs: ["counters", "roofline", "modules", "operators_by_name"], has: (page) => !isImportAlone(page.facts) && ["counters", "roofline"].some((name) => rowsOf(page, name)), parts: [
    ["flops", (page) => drawFlops(page)], ["roofline", (page) => drawRoofline(page)]] },
  { id: "benchmark", title: "Benchmark", needs: ["step_series", "steps", "slices"], has: (page) => !isImportAlone(page.facts), parts: [
    ["benchmark", (page) => { drawBenchmark(page); drawMeasured(page); }],
    ["steps", (page) => { drawSteps(page); drawStepTable(page); }], ["throughput", (page) => drawThroughput(page)],
    ["compare", (page) => drawCompare(page)], ["mistakes", (page) => drawMistakes(page)], ["ablation", (page) => drawAblation(page)]] },
  { id: "ranges", title: "Ranges and launches", needs: ["regions", "ranges", "launches", "gaps"], parts: [
    ["regions", (page) => drawRegions(page)], ["nvtx-ranges", (page) => drawRanges(page)], ["launches", (page) => drawLaunches(page)], ["nsys-hint", (page) => drawNsysHint(page)]] },
  { id: "nsys", title: "Nsight Systems", needs: ["nsys_modules", "nsys_steps", "nsys_ranges", "nsys_kernels", "nsys_copies", "nsys_api", "nsys_backtraces", "nsys_memory", "nsys_samples", "nsys_gaps"], has: (page) => Boolean(page.facts.nsys), parts: [
    ["nsys-capture", (page) => drawNsys(page)], ["nsys-modules", (page) => drawNsysModules(page)], ["nsys-ranges", (page) => drawNsysRanges(page)],
    ["nsys-kernels", (page) => drawNsysDevice(page)], ["nsys-memory", (page) => drawNsysMemory(page)], ["nsys-api", (page) => drawNsysHost(page)]] },
  { id: "method", title: "How it was measured", needs: ["slices", "artifacts", "threads", "watch", "watch_lines", "outliers"],
    has: (page) => (page.facts.layers || []).length || rowsOf(page, "slices") || rowsOf(page, "threads") || page.facts.watch, parts: [
      ["clean", (page) => drawClean(page)],
      ["timeline-part", (page) => { if (!page.slices.length) { drop("timeline-part"); return; } drawTimeline(page); drawSliceTable(page); }],
      ["layers", (page) => { if (!(page.facts.layers || []).length) { drop("layers"); return; } drawLayers(page); }],
      ["threads", (page) => drawThreads(page)], ["watch", (page) => drawWatch(page)]] },
  { id: "environment", title: "Environment", needs: ["artifacts"], has: () => true, parts: [
    ["environment-facts", (page) => drawFacts(page.facts)], ["files", (page) => drawArtifacts(page)]] },
  { id: "glossary", title: "Glossary", needs: [], has: () => true, parts: [["glossary", (page) => drawGlossary(page)]] },
];
const ALL = "all";

const viewBox = (id) => byId("view-" + id);
const viewOf = (id) => VIEWS.find((view) => view.id === id);
const isThere = (page, view) => Boolean(view.has ? view.has(page) : (view.shows || view.needs).some((name) => rowsOf(page, name)));
let shownPage = null; // the page's data, once it is read
const here = { view: null, key: null, filter: {} }; // where the reader is
const keyFinders = new Map();
const filterKeepers = new Map();
const filtered = new Map(); // the filter that the tables of a view keep to
const drawnOnce = new Set();

function register(map, view, handler) {
  if (!map.has(view)) map.set(view, []);
  map.get(view).push(handler);
}

const onKey = (view, find) => register(keyFinders, view, find);

const onFilter = (view, keep) => register(filterKeepers, view, keep);
const filterOf = (view) => filtered.get(view) || {}; // what a table that is drawn now keeps to

function drawOnce(draw, page) {
  if (drawnOnce.has(draw)) return;
  drawnOnce.add(draw);
  draw(page);
}

// Addresses. A key is the rest of the way, encoded whole: it may hold any character.
const wayTo = (view, key) => "#" + view + (key === null || key === undefined || key === "" ? "" : "/" + encodeURIComponent(key));
const wayFiltered = (view, filter) => "#" + view + "?" + new URLSearchParams(filter).toString();
const hasView = (view) => Boolean(viewOf(view)) && (!shownPage || isThere(shownPage, viewOf(view)));

function linkTo(view, key, text) {
  return hasView(view) ? el("a", { class: "way", href: wayTo(view, key) }, text ?? key) : el("span", {}, text ?? key);
}

function linkFiltered(view, filter, text) {
  return hasView(view) ? el("a", { class: "way", href: wayFiltered(view, filter) }, text) : null;
}

// A link as report.json has it, "view/key" with the key as it is; plain text for one that leads nowhere.
function linkOf(link, text) {
  const at = String(link).indexOf("/");
  return at < 0 ? linkTo(String(link), null, text ?? link) : linkTo(link.slice(0, at), link.slice(at + 1), text ?? link.slice(at + 1));
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch (error) { return text; }
}

// What an address means: {view, key, filter}, or {note} with why it means nothing here.
function placeOf(address) {
  const whole = address.replace(/^#/, "");
  if (whole === "") return { view: "overview", key: null, filter: {} };
  const [way, query] = whole.split(/\?(.*)/s);
  const [name, rest] = way.split(/\/(.*)/s);
  const key = rest ? decoded(rest) : null;
  const filter = Object.fromEntries(new URLSearchParams(query || ""));
  if (name === ALL) return { view: ALL, key, filter: {} };
  if (viewOf(name)) return hasView(name) ? { view: name, key, filter } : { note: "This recording has nothing for “" + viewOf(name).title + "”." };
  const element = byId(decoded(way));
  const box = element && element.closest(".view");
  if (box) return { view: box.dataset.view, key: null, filter: {}, element };
  return { note: "Nothing on this page is called “" + decoded(way) + "”; this is the overview." };
}

// Draws what is not drawn yet; a part that fails says so where it stands and spoils no other.
async function drawView(view, page) {
  if (view.drawing) return view.drawing;
  view.drawing = (async () => {
    try { await need(page, view.needs); } catch (error) { broken(viewBox(view.id), error.message + ". The figures are in report.json."); return; }
    for (const [id, draw] of view.parts) {
      try { draw(page); } catch (error) { console.error(error); broken(byId(id) || viewBox(view.id), "This part could not be drawn: " + error.message + ". The figures are in report.json."); }
    }
  })();
  return view.drawing;
}

const broken = (box, text) => box.append(el("p", { class: "broken" }, text));

// A part of a view that has nothing to say goes.
function drop(id) {
  if (byId(id)) byId(id).remove();
}

// Shows the place that an address names. `fresh` is false when the reader goes back or forward: the
// view then stands where it was left.
let turn = 0;
async function show(address, fresh) {
  const page = shownPage;
  const place = placeOf(address);
  const mine = (turn += 1);
  const target = place.note ? { view: "overview", key: null, filter: {} } : place;
  const changed = here.view !== target.view;
  if (changed && here.view) leftAt.set(here.view, window.scrollY);
  const wanted = target.view === ALL ? VIEWS.filter((view) => isThere(page, view)) : [viewOf(target.view)];
  const main = byId("main");
  main.setAttribute("aria-busy", "true");
  Object.assign(here, { view: target.view, key: target.key, filter: target.filter });
  for (const view of VIEWS) if (viewBox(view.id)) viewBox(view.id).hidden = !wanted.includes(view);
  for (const way of document.querySelectorAll("#views a")) {
    if (way.dataset.view === target.view) { way.setAttribute("aria-current", "page"); bringIntoNavigation(way); } else way.removeAttribute("aria-current");
  }
  document.title = (target.view === ALL || target.view === "overview" ? "" : viewOf(target.view).title + " - ") + pageTitle;
  hideTip();
  if (target.view !== ALL && !viewOf(target.view).drawing) filtered.set(target.view, target.filter);
  for (const view of wanted) { await drawView(view, page); if (mine !== turn) return; }
  applyFilter(target);
  say(place.note || null);
  arrive(target, changed, fresh);
  main.removeAttribute("aria-busy");
}

const leftAt = new Map();
const pageTitle = document.title;

// Where the reader's eye and the keyboard go: to the row, to the part, to where the view was left,
// or to the view's heading.
function arrive(target, changed, fresh) {
  if (target.element && target.element.isConnected) { arriveAt(target.element); return; }
  if (target.key !== null && target.view !== ALL) {
    if (!findKey(target.view, target.key)) say("“" + target.key + "” is not among the rows of this page. " + whereTheRestIs(target.view));
    return;
  }
  if (!changed && !fresh) return;
  window.scrollTo(0, fresh ? 0 : leftAt.get(target.view) || 0);
  const heading = fresh === "first" ? null : viewBox(target.view === ALL ? "overview" : target.view).querySelector("h2");
  if (heading) heading.focus({ preventScroll: true });
}

// A term is marked like a row; a part of a view begins at its heading.
function arriveAt(element) {
  if (element.tagName !== "SECTION") { markElement(element); return; }
  element.scrollIntoView();
  const heading = element.querySelector("h2, h3") || element;
  if (!heading.hasAttribute("tabindex")) heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
}

function findKey(view, key) {
  for (const find of keyFinders.get(view) || []) if (find(key)) return true;
  const box = viewBox(view);
  const element = [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === view + "/" + key)
    || [byId(key), byId(view + "-" + key), byId("term-" + key)].find((one) => one && box.contains(one));
  if (!element) return false;
  markElement(element);
  return true;
}

// What a table of this view left out, where it did; else what else could be the reason.
function whereTheRestIs(view) {
  const cut = viewOf(view).needs.map((name) => shownPage.tables[name]).find((table) => table && table.left_out);
  return cut ? cut.left_out : "It may be of another run, or have had nothing measured.";
}

// Scrolls the navigation by itself: what the browser does to show an element moves the page too.
function bringIntoNavigation(way) {
  const box = byId("views"), around = box.getBoundingClientRect(), own = way.getBoundingClientRect();
  if (own.left < around.left || own.right > around.right) box.scrollLeft += own.left - around.left - (around.width - own.width) / 2;
  if (own.top < around.top || own.bottom > around.bottom) box.scrollTop += own.top - around.top - (around.height - own.height) / 2;
}

// Marks one element of the page and brings it to the middle of the screen.
function markElement(element) {
  for (const other of document.querySelectorAll(".marked")) other.classList.remove("marked");
  for (let box = element.parentElement; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  element.classList.add("marked");
  if (!element.hasAttribute("tabindex")) element.setAttribute("tabindex", "-1");
  element.scrollIntoView({ block: "center", inline: "nearest" });
  element.focus({ preventScroll: true });
}

// A quiet word above the view: an address that leads nowhere, a row that is not here.
function say(text) {
  byId("note").hidden = !text;
  byId("note").textContent = text || "";
}

// The filter of the address stands above the view, with the way to take it off.
function applyFilter(target) {
  const words = Object.entries(target.filter || {});
  const box = byId("filter");
  if (target.view !== ALL) byId("title-" + target.view).after(box);
  box.hidden = !words.length;
  box.replaceChildren(...(words.length ? [el("span", {}, "Only "), ...words.flatMap(([name, value], at) => [at ? ", " : "", name + " ", el("code", {}, value)]), " and what is inside it. ", el("a", { href: wayTo(target.view) }, "Show all")] : []));
  if (target.view === ALL || JSON.stringify(filterOf(target.view)) === JSON.stringify(target.filter)) return;
  filtered.set(target.view, target.filter);
  for (const keep of filterKeepers.get(target.view) || []) keep(target.filter);
}

// Whether a path is the module of a filter or lies inside it.
const isWithin = (path, module) => path === module || String(path).startsWith(module + ".");

// The views that show what lies in a module, as links for its row.
const MODULE_WAYS = [["operators", "operators"], ["source", "lines"], ["kernels", "kernels"], ["nsys", "nsys"]];
const moduleWays = (path) => MODULE_WAYS.filter(([view]) => hasView(view)).map(([view, text]) => linkFiltered(view, { module: path }, text));

// Goes to an address: through the browser's own history, or by itself in a notebook's frame, whose
// addresses are those of the notebook around it.
const inFrame = window.location.protocol === "about:";
let followed = false;

function go(address) {
  if (inFrame) show(address, true);
  else if (window.location.hash === address) show(address, true);
  else { followed = true; window.location.hash = address; }
}

function drawNavigation(page) {
  const there = VIEWS.filter((view) => isThere(page, view));
  append(byId("views"), there.map((view) => el("a", { href: "#" + view.id, "data-view": view.id }, view.title)));
  byId("views").append(el("a", { href: "#" + ALL, "data-view": ALL, class: "all", title: "every view, one under the other: to print, or to search with the browser" }, "All on one page"));
  for (const view of VIEWS) {
    if (there.includes(view)) byId("title-" + view.id).textContent = view.title;
    else viewBox(view.id).remove();
  }
}

function startViews(page) {
  shownPage = page;
  drawNavigation(page);
  try { window.history.scrollRestoration = "manual"; } catch (error) { /* a frame may have no history of its own */ }
  document.addEventListener("click", (event) => {
    const way = event.target.closest("a[href]");
    if (!way || event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const address = way.getAttribute("href");
    // Files beside the recording cannot be opened from a notebook's frame either.
    if (!address.startsWith("#")) { if (inFrame) event.preventDefault(); return; }
    event.preventDefault();
    if (address === "#main") { byId("main").focus(); return; }
    go(address);
  });
  window.addEventListener("hashchange", () => { const fresh = followed; followed = false; show(window.location.hash, fresh); });
  return show(inFrame ? "" : window.location.hash, "first");
}
