// The views of the page: one is on screen at a time, chosen by the address after "#", and is drawn
// when it is opened for the first time.
//
// Addresses ("#" and then):
//   modules                          a view
//   modules/Net.layer                a row or a part of it; the key is percent-encoded
//   operators?module=Net.layer       a view whose tables keep to what fits a filter
//   all                              every view, one under the other, to print or to search
//   functions, term-clean            a part of a view by its id
//
// A view is {id, title, needs, shows, has, parts}; main.js has them in order:
//   needs   the parts of the data (tables and others, see html.py) to inflate before drawing
//   shows   the parts without which there is nothing to show, where these are not all of `needs`
//   has     has(page) in place of that; a view with nothing to show is not in the navigation
//   parts   [id of the element that shows an error of drawing, draw(page), ...]
//
// For drawing:
//   linkTo(view, key, text)          a link to a row; plain text where the page has no such view
//   linkFiltered(view, filter, text) a link to a view with a filter, as {module: "Net.layer"}
//   onKey(view, find)                find(key) marks the row of that key and says whether it did;
//                                    makeTable and makeTree do it by themselves when their spec has
//                                    `view` and `keyOf(record)`
//   onFilter(view, keep)             keep(filter) is called when the filter of the address changes
//                                    ({}: none); filterOf(view) is the first one. Tables and trees
//                                    with a column `module` or `path` do it by themselves
//   data-key="view/key"              on any element: what has no table is found by it

import { append, byId, el, factsElsewhere, hideTip, isNumber } from "./dom.js";

const ALL = "all";
let allViews = []; // the views in the order of the navigation, see main.js

const viewBox = (id) => byId("view-" + id);
const viewOf = (id) => allViews.find((view) => view.id === id);
const isThere = (page, view) =>
  Boolean(
    view.has ? view.has(page) : (view.shows || view.needs).some((name) => rowsOf(page, name)),
  );
let shownPage = null; // the page's data, once it is read
const here = { view: null, key: null, filter: {} }; // where the reader is
const keyFinders = new Map();
const filterKeepers = new Map();
const filtered = new Map(); // the filter that the tables of a view keep to

function register(map, view, handler) {
  if (!map.has(view)) map.set(view, []);
  map.get(view).push(handler);
}

export const onKey = (view, find) => register(keyFinders, view, find);

export const onFilter = (view, keep) => register(filterKeepers, view, keep);
export const filterOf = (view) => filtered.get(view) || {};

// Addresses. A key is the rest of the way, encoded whole: it may hold any character.
export const wayTo = (view, key) =>
  "#" +
  view +
  (key === null || key === undefined || key === "" ? "" : "/" + encodeURIComponent(key));
const wayFiltered = (view, filter) => "#" + view + "?" + new URLSearchParams(filter).toString();
export const hasView = (view) =>
  Boolean(viewOf(view)) && (!shownPage || isThere(shownPage, viewOf(view)));

export function linkTo(view, key, text) {
  return hasView(view)
    ? el("a", { class: "way", href: wayTo(view, key) }, text ?? key)
    : el("span", {}, text ?? key);
}

export function linkFiltered(view, filter, text) {
  return hasView(view) ? el("a", { class: "way", href: wayFiltered(view, filter) }, text) : null;
}

// A link of report.json, "view/key" with the key as it is.
export function linkParts(link) {
  const at = String(link).indexOf("/");
  return at < 0 ? [String(link), null] : [link.slice(0, at), link.slice(at + 1)];
}

// Such a link as an element; plain text where it leads nowhere.
export function linkOf(link, text) {
  const [view, key] = linkParts(link);
  return linkTo(view, key, text ?? key ?? link);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
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
  if (viewOf(name))
    return hasView(name)
      ? { view: name, key, filter }
      : { note: "This page has nothing for “" + viewOf(name).title + "”." };
  const element = byId(decoded(way));
  const box = element?.closest(".view");
  if (box) return { view: box.dataset.view, key: null, filter: {}, element };
  return { note: "Nothing on this page is called “" + decoded(way) + "”; this is the overview." };
}

// Draws a view once; a part that fails shows its error in its place, and the others are drawn.
async function drawView(view, page) {
  if (view.drawing) return view.drawing;
  view.drawing = (async () => {
    try {
      await need(page, view.needs);
    } catch (error) {
      broken(viewBox(view.id), error.message + factsElsewhere());
      return;
    }
    for (const [id, ...draws] of view.parts) {
      try {
        for (const draw of draws) draw(page);
      } catch (error) {
        console.error(error);
        broken(
          byId(id) || viewBox(view.id),
          "This part could not be drawn: " + error.message + factsElsewhere(),
        );
      }
    }
  })();
  return view.drawing;
}

const broken = (box, text) => box.append(el("p", { class: "broken" }, text));

// A part of a view that has nothing to say goes.
export function drop(id) {
  if (byId(id)) byId(id).remove();
}

// Shows the place that an address names. `fresh` is false when the reader goes back or forward: the
// view then is where it was left.
let turn = 0;
async function show(address, fresh) {
  const page = shownPage;
  const place = placeOf(address);
  turn += 1;
  const mine = turn;
  const target = place.note ? { view: "overview", key: null, filter: {} } : place;
  const changed = here.view !== target.view;
  if (changed && here.view) leftAt.set(here.view, window.scrollY);
  const wanted =
    target.view === ALL ? allViews.filter((view) => isThere(page, view)) : [viewOf(target.view)];
  const main = byId("main");
  main.setAttribute("aria-busy", "true");
  Object.assign(here, { view: target.view, key: target.key, filter: target.filter });
  for (const view of allViews)
    if (viewBox(view.id)) viewBox(view.id).hidden = !wanted.includes(view);
  for (const way of document.querySelectorAll("#views a")) {
    if (way.dataset.view === target.view) {
      way.setAttribute("aria-current", "page");
      bringIntoNavigation(way);
    } else way.removeAttribute("aria-current");
  }
  document.title =
    (target.view === ALL || target.view === "overview" ? "" : viewOf(target.view).title + " - ") +
    pageTitle;
  hideTip();
  if (target.view !== ALL && !viewOf(target.view).drawing) filtered.set(target.view, target.filter);
  for (const view of wanted) {
    await drawView(view, page);
    if (mine !== turn) return;
  }
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
  if (target.element?.isConnected) {
    arriveAt(target.element);
    return;
  }
  if (target.key !== null && target.view !== ALL) {
    if (!findKey(target.view, target.key))
      say(
        "“" + target.key + "” is not among the rows of this page. " + whereTheRestIs(target.view),
      );
    return;
  }
  if (!changed && !fresh) return;
  window.scrollTo(0, fresh ? 0 : leftAt.get(target.view) || 0);
  const heading =
    fresh === "first"
      ? null
      : viewBox(target.view === ALL ? "overview" : target.view).querySelector("h2");
  if (heading) heading.focus({ preventScroll: true });
}

// A term is marked like a row; a part of a view begins at its heading.
function arriveAt(element) {
  if (element.tagName !== "SECTION") {
    markElement(element);
    return;
  }
  element.scrollIntoView();
  const heading = element.querySelector("h2, h3") || element;
  if (!heading.hasAttribute("tabindex")) heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
}

function findKey(view, key) {
  for (const find of keyFinders.get(view) || []) if (find(key)) return true;
  const box = viewBox(view);
  const element =
    [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === view + "/" + key) ||
    [byId(key), byId(view + "-" + key), byId("term-" + key)].find(
      (one) => one && box.contains(one),
    );
  if (!element) return false;
  markElement(element);
  return true;
}

// What a table of this view left out, where it did; else what else could be the reason.
function whereTheRestIs(view) {
  const cut = viewOf(view)
    .needs.map((name) => shownPage.tables[name])
    .find((table) => table?.left_out);
  return cut ? cut.left_out : "It may be of another run, or have had nothing measured.";
}

// Scrolls the navigation by itself: what the browser does to show an element moves the page too.
function bringIntoNavigation(way) {
  const box = byId("views");
  const around = box.getBoundingClientRect();
  const own = way.getBoundingClientRect();
  if (own.left < around.left || own.right > around.right)
    box.scrollLeft += own.left - around.left - (around.width - own.width) / 2;
  if (own.top < around.top || own.bottom > around.bottom)
    box.scrollTop += own.top - around.top - (around.height - own.height) / 2;
}

// Marks one element of the page and brings it to the middle of the screen.
export function markElement(element) {
  for (const other of document.querySelectorAll(".marked")) other.classList.remove("marked");
  for (let box = element.parentElement; box; box = box.parentElement)
    if (box.tagName === "DETAILS") box.open = true;
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

// The filter of the address is above the view, with the way to take it off.
function applyFilter(target) {
  const words = Object.entries(target.filter || {});
  const box = byId("filter");
  if (target.view !== ALL) byId("title-" + target.view).after(box);
  box.hidden = !words.length;
  box.replaceChildren(
    ...(words.length
      ? [
          el("span", {}, "Only "),
          ...words.flatMap(([name, value], at) => [
            at ? ", " : "",
            name + " ",
            el("code", {}, value),
          ]),
          " and what is inside it. ",
          el("a", { href: wayTo(target.view) }, "Show all"),
        ]
      : []),
  );
  if (
    target.view === ALL ||
    JSON.stringify(filterOf(target.view)) === JSON.stringify(target.filter)
  )
    return;
  filtered.set(target.view, target.filter);
  for (const keep of filterKeepers.get(target.view) || []) keep(target.filter);
}

// Whether a path is the module of a filter or lies inside it.
export const isWithin = (path, module) => path === module || String(path).startsWith(module + ".");

// The views that show what lies in a module, as links for its row.
const MODULE_WAYS = [
  ["operators", "operators"],
  ["source", "lines"],
  ["kernels", "kernels"],
  ["nsys", "nsys"],
];
export const moduleWays = (path) =>
  MODULE_WAYS.filter(([view]) => hasView(view)).map(([view, text]) =>
    linkFiltered(view, { module: path }, text),
  );

// Goes to an address: through the browser's own history, or by itself in a notebook's frame, whose
// addresses are those of the notebook around it.
export const inFrame = window.location.protocol === "about:";
let followed = false;

export function go(address) {
  if (inFrame) show(address, true);
  else if (window.location.hash === address) show(address, true);
  else {
    followed = true;
    window.location.hash = address;
  }
}

function drawNavigation(page) {
  const there = allViews.filter((view) => isThere(page, view));
  append(
    byId("views"),
    there.map((view) => el("a", { href: "#" + view.id, "data-view": view.id }, view.title)),
  );
  byId("views").append(
    el(
      "a",
      {
        href: "#" + ALL,
        "data-view": ALL,
        class: "all",
        title: "every view, one under the other: to print, or to search with the browser",
      },
      "All on one page",
    ),
  );
  for (const view of allViews) {
    if (there.includes(view)) byId("title-" + view.id).textContent = view.title;
    else viewBox(view.id).remove();
  }
}

export function startViews(views, page) {
  allViews = views;
  shownPage = page;
  drawNavigation(page);
  try {
    window.history.scrollRestoration = "manual";
  } catch {
    /* a frame may have no history of its own */
  }
  document.addEventListener("click", (event) => {
    const way = event.target.closest("a[href]");
    if (!way || event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const address = way.getAttribute("href");
    // Files beside the recording cannot be opened from a notebook's frame either.
    if (!address.startsWith("#")) {
      if (inFrame) event.preventDefault();
      return;
    }
    event.preventDefault();
    if (address === "#main") {
      byId("main").focus();
      return;
    }
    go(address);
  });
  window.addEventListener("hashchange", () => {
    const fresh = followed;
    followed = false;
    show(window.location.hash, fresh);
  });
  return show(inFrame ? "" : window.location.hash, "first");
}

// ---------- Packed data ----------

// Data that is inflated only when a view asks for it: gzip in base64, each in a script element that
// no browser runs (its id is "pack-" and the name of the part).

const UNPACKABLE = typeof DecompressionStream === "function";

// The text of a packed part: unpack("plotly").then((text) => ...). Rejects where the browser cannot
// inflate, with a message that can be shown as it is.
export async function unpack(name) {
  const source = byId("pack-" + name);
  if (!source) throw new Error("this page has no part called " + name);
  if (!UNPACKABLE)
    throw new Error(
      "this browser cannot inflate the page's data (it has no DecompressionStream; browsers " +
        "from 2023 on have it)",
    );
  const binary = atob(source.textContent.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(inflated).text();
}

// What a page has before anything is inflated, so that whoever draws finds the usual shape.
export function withEmptyParts(page) {
  return {
    tables: {},
    steps: { points: [], total: 0, left_out: null },
    slices: [],
    counters: [],
    call_trees: {},
    roofline: null,
    ...page,
  };
}

// How many rows a part has, whether it is inflated or not; 0 where the page has none.
export const rowsOf = (page, name) => page.parts[name] || 0;

// Inflates parts and puts them where drawing functions look for them: tables into `page.tables`,
// the others beside it. Each is inflated once.
const unpacking = new Map();

function need(page, names) {
  return Promise.all(
    names
      .filter((name) => rowsOf(page, name))
      .map((name) => {
        if (!unpacking.has(name))
          unpacking.set(
            name,
            unpack(name).then((text) => merge(page, JSON.parse(text))),
          );
        return unpacking.get(name);
      }),
  );
}

function merge(page, part) {
  for (const [key, value] of Object.entries(part)) {
    if (key === "tables") Object.assign(page.tables, value);
    else page[key] = value;
  }
}

// ---------- What a recording holds ----------

// The slices that a table's figures rest on: those of the first round, which had no step to settle,
// only where there are no others.
export function settledSlices(page, fits) {
  const found = page.slices.filter((slice) => fits(slice) && isNumber(slice.step_median_s));
  const late = found.filter((slice) => slice.round > 1);
  return late.length ? late : found;
}

// A recording of files of other tools, without a step and a run of its own: there is no clean time.
export const isImportAlone = (facts) =>
  (Boolean(facts.nsys && !(facts.layers || []).length) ||
    Boolean(facts.imports?.length && !facts.script)) &&
  !facts.step?.count &&
  !isNumber(facts.benchmark?.median_s);
