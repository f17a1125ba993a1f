// What lab.py puts before and after the page's own script: a library of charts that only notes what
// it is given, the same width and colours on every machine, and `lab`, which draws and tells.
window.noted = { widths: [], print: 0 };
window.Plotly = {
  react(surface, data, layout, config) {
    Object.assign(surface, { data, layout, config });
    surface.handlers = surface.handlers || {};
    surface.on = (name, act) => {
      const before = surface.handlers[name];
      surface.handlers[name] = (event) => [before?.(event), act(event)].at(-1);
    };
    if (!surface.children.length) surface.innerHTML = '<svg class="main-svg"></svg><svg class="main-svg"></svg><div class="modebar"></div>';
  },
  relayout(surface, changed) { surface.changed = changed; },
  purge(surface) { surface.purged = true; },
};
window.IntersectionObserver = class {
  constructor(act, options) { window.noted.seen = act; window.noted.margin = options.rootMargin; }
  observe(target) { setTimeout(() => this.gone !== target && window.noted.seen([{ target, isIntersecting: true }]), 0); }
  unobserve(target) { this.gone = target; }
};
window.ResizeObserver = class {
  constructor(act) { window.noted.resized = act; }
  observe() {}
  unobserve() {}
};
window.plotWidth = 800;
for (const [type, name] of [[Element.prototype, "clientWidth"]]) {
  const own = Object.getOwnPropertyDescriptor(type, name).get;
  Object.defineProperty(type, name, { get() { return this.classList.contains("plot") ? window.plotWidth : own.call(this); } });
}
const ownValue = CSSStyleDeclaration.prototype.getPropertyValue;
CSSStyleDeclaration.prototype.getPropertyValue = function (name) {
  if (!name.startsWith("--") || this.parentRule || this.length < 50) return ownValue.call(this, name);
  let sum = 7;
  for (const letter of name) sum = (sum * 31 + letter.charCodeAt(0)) % 0xffffff;
  return "#" + sum.toString(16).padStart(6, "0");
};

window.lab = (() => {
  const round = (text) => text.replace(/-?\d+\.\d{3,}(e-?\d+)?/g, (one) => String(Number(Number(one).toPrecision(5))));
  const plainly = (_key, value) =>
    typeof value === "number" ? (Number.isFinite(value) ? Number(value.toPrecision(7)) : String(value)) : typeof value === "function" ? "function" : value;
  const SKIPPED = new Set(["class", "id", "type", "tabindex", "data-drawn", "aria-hidden", "data-text", "for", "list", "spellcheck", "autocomplete", "aria-description"]);
  const look = (one) => one.tagName.toLowerCase() + (one.id ? "#" + one.id : "") + [...one.classList].map((name) => "." + name).join("");
  const attributes = (one, skipped = []) =>
    [...one.attributes].filter(({ name }) => !SKIPPED.has(name) && !skipped.includes(name))
      .map(({ name, value }) => name + "=" + (name === "style" ? round(value) : value).replaceAll("\n", " ¦ "));
  // A piece of a cell in one line.
  const inLine = (one) => {
    if (one.nodeType === 3) return one.data;
    if (one.matches(".row-ways, .arrow, .indent")) return "";
    if (one.matches(".none")) return "–(" + one.title + ")";
    if (one.matches(".swatch, .mark-sample")) return "[" + round(one.style.cssText.replace(/[; ]/g, "")) + one.textContent + "]";
    const inside = (one.style.cssText ? "[" + round(one.style.cssText) + "]" : "") + [...one.childNodes].map(inLine).join("");
    const words = [...[...one.classList].filter((name) => !["over", "link", "quiet", "name"].includes(name)), one.closest("th") ? "" : one.title].filter(Boolean).join(" ").replaceAll("\n", " ¦ ");
    return inside + (one.tagName === "A" ? "→" + one.getAttribute("href") : "") + (words && !one.matches("a.way") ? "<" + words + ">" : "");
  };
  const rowOf = (row) => look(row) + attributes(row, ["aria-level"]).map((one) => " " + one).join("") + " | " +
    [...row.children].map((cell) => (cell.className === "number" || cell.className === "text" || !cell.className ? "" : "<" + cell.className + ">") + [...cell.childNodes].map(inLine).join("") + (/NaN|undefined/.test(cell.title) ? "NaN in a title" : "")).join(" | ");
  const tableOf = (table) => [look(table), ...[...table.rows].map(rowOf)];

  // How a chart is drawn, and what the tip says at the ends of each trace.
  const USUAL = ["autosize", "paper_bgcolor", "plot_bgcolor", "showlegend", "font", "modebar", "hoverdistance", "dragmode"];
  const ofAxis = ({ gridcolor, linecolor, zeroline, tickcolor, automargin, ...rest }) => rest;
  const chartOf = (surface) => {
    const layout = Object.fromEntries(Object.entries(surface.layout).filter(([key]) => !USUAL.includes(key))
      .map(([key, value]) => [key, /axis/.test(key) ? ofAxis(value) : value]));
    const told = [];
    const hover = surface.handlers.plotly_hover;
    for (const trace of surface.data) {
      const points = trace.customdata || trace.ids;
      if (!points?.length || trace.hoverinfo === "skip" || !hover) continue;
      for (const at of new Set([0, Math.floor(points.length / 2), points.length - 1])) {
        window.T.dom.tip.hidden = true;
        hover({ event: { clientX: 40, clientY: 40 }, points: [{ customdata: trace.customdata?.[at], pointNumber: at }] });
        const { tip } = window.T.dom;
        if (!tip.hidden) told.push("tip: " + tip.firstChild.textContent + " | " + [...tip.querySelectorAll("dt")].map((name) => name.textContent + "=" + name.nextSibling.textContent).join("; "));
      }
    }
    surface.handlers.plotly_unhover?.();
    return [
      ...surface.data.map(({ customdata, ...trace }) => "trace " + JSON.stringify(trace, plainly)),
      ...Object.entries(layout).map(([key, value]) => key + " " + JSON.stringify(value, plainly)), ...told,
    ];
  };
  // What was on the page before anything was drawn, and what table.js puts round every table.
  let before = new WeakMap();
  const isOld = (one) => before.get(one) === one.outerHTML || one.matches(".copies, .more:empty, .lack:empty, h2") ||
    (one.matches("input[type=search]") && one.placeholder.startsWith("search"));
  const outline = (one, lines = [], depth = "") => {
    if (depth && isOld(one)) return lines;
    if (one.matches("table")) lines.push(...tableOf(one).map((line) => depth + line));
    else if (one.matches(".plot") && one.data) lines.push(depth + "plot " + attributes(one).join(" "), ...chartOf(one).map((line) => depth + " " + line));
    else if (one.matches("p, li, dt, dd, h2, h3, h4, summary, label, option") && !one.querySelector("details, div, ul, table, input, select"))
      lines.push(depth + look(one) + attributes(one).map((each) => " " + each).join("") + " " + [...one.childNodes].map(inLine).join(""));
    else {
      const texts = [...one.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data).filter((text) => text.trim()).join("¦");
      lines.push(depth + look(one) + attributes(one).map((each) => " " + each).join("") + (one.matches("select, input") ? " =" + one.value : "") + (texts ? " “" + texts + "”" : ""));
      for (const child of one.children) outline(child, lines, depth + " ");
    }
    return lines;
  };
  document.querySelector("main").removeAttribute("aria-busy");
  const bare = document.querySelector("main").innerHTML;
  const rest = (most = 0) => new Promise((done) => setTimeout(done, most));
  // Nothing on the page may be told by a word that the language makes of what is not there.
  const broken = (lines) => lines.filter((line) => /NaN|undefined|\[object|"Infinity"|-Infinity|function/.test(line.replace(/function(s|al)?\b|Infinityfill/g, "")));
  const of = (value) => value instanceof Node ? (value.nodeType === 3 ? value.data : outline(value)) : Array.isArray(value) ? value.map(of)
    : value instanceof Map ? [...value].map(([key, one]) => [of(key), of(one)]) : value instanceof Set ? [...value].map(of)
    : typeof value === "number" && !Number.isFinite(value) ? String(value) : typeof value === "number" ? Number(value.toPrecision(12)) : value === undefined ? null : value;

  const prepare = (page) => {
    const views = window.T.views;
    document.querySelector("main").innerHTML = bare;
    for (const view of document.querySelectorAll(".view")) view.hidden = false;
    before = new WeakMap([...document.querySelectorAll("main *")].map((one) => [one, one.outerHTML]));
    views.allViews = window.T.main.VIEWS;
    for (const map of [views.keyFinders, views.filterKeepers, views.filtered]) map.clear();
    window.T.charts.CHARTS.clear();
    if (page.tables) views.shownPage = views.withEmptyParts(page);
    window.T.python.moduleLines = null;
    Object.assign(window.T.python.callState, { phase: "step", kind: "icicle", depth: 12, cutoff: 0.005, node: null, chosen: null, folded: true, wanted: "", only: false, areas: [] });
    return views.shownPage;
  };
  return {
    of, outline, rest, bare, prepare, broken,
    // Draws parts of a view; `then` is told afterwards: elements by selector.
    async draw(page, draws, selectors) {
      const whole = prepare(page);
      for (const draw of draws) await draw(whole);
      await rest();
      await rest();
      await rest();
      return this.tell(selectors);
    },
    tell: (selectors) => selectors.flatMap((selector) => {
      const found = [...document.querySelectorAll(selector)];
      return found.length ? found.flatMap((one) => outline(one)) : [selector + " is gone"];
    }),
  };
})();
