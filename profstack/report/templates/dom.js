// Elements of the page and the small pieces that views are built from. Text always becomes a text
// node: no function here parses markup. Numbers are written with three significant digits.

// Characters that change the direction of writing are written out: a name with one would look like
// another name. Control characters without a width are written out as well.
// biome-ignore-start lint/suspicious/noControlCharactersInRegex: these are what is searched for
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
// biome-ignore-end lint/suspicious/noControlCharactersInRegex: see above
export const visible = (text) =>
  String(text).replace(UNSEEN, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
const SEEN_ATTRIBUTES = ["title", "aria-label", "aria-description", "placeholder"];

export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else
      element.setAttribute(
        name,
        value === true ? "" : SEEN_ATTRIBUTES.includes(name) ? visible(value) : String(value),
      );
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

export const byId = (id) => document.getElementById(id);

// What is said where something could not be drawn.
export const factsElsewhere = () => ". The figures are in " + document.body.dataset.facts + ".";

// Words that matter less than those around them: within a line, and as a line of their own.
export const quiet = (...words) => el("span", { class: "quiet" }, ...words);
export const remark = (...words) => el("p", { class: "quiet" }, ...words);

// A word of the glossary, linked to what it means.
export const term = (word, text) => el("a", { class: "term", href: "#term-" + word }, text || word);

export const none = (reason) =>
  el(
    "span",
    {
      class: "none",
      role: "img",
      title: reason || "not measured",
      "aria-label": "not measured" + (reason ? ": " + reason : ""),
    },
    NONE,
  );

export const shown = (value, unit, reason) =>
  value === null || value === undefined ? none(reason) : formatValue(value, unit);

// Kinds of slices and layers keep one colour on the whole page; unknown layers share four spares.
const KNOWN_KINDS = [
  "startup",
  "warmup",
  "settle",
  "clean",
  "watch",
  "cprofile",
  "torch",
  "nvtx",
  "memory",
  "flops",
];

export function kindColour(kind) {
  if (KNOWN_KINDS.includes(kind)) return "var(--kind-" + kind + ")";
  return "var(--spare-" + (hash(String(kind)) % 4) + ")";
}

export function hash(text) {
  let value = 5381;
  for (let at = 0; at < text.length; at += 1) value = ((value * 33) ^ text.charCodeAt(at)) >>> 0;
  return value;
}

export function swatch(colour) {
  const dot = el("span", { class: "swatch", "aria-hidden": "true" });
  dot.style.background = colour;
  return dot;
}

// A row of buttons of which one is chosen.
export function choice(label, options, chosen, onChoose) {
  const group = el("div", { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = el("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.addEventListener("click", () => {
      for (const other of group.children)
        other.setAttribute("aria-pressed", String(other === button));
      onChoose(value);
    });
    group.append(button);
  }
  return group;
}

export function select(label, options, chosen, onChoose) {
  const box = el("select", { "aria-label": label });
  for (const [value, text] of options) {
    box.append(el("option", { value, selected: value === chosen }, text));
  }
  box.addEventListener("change", () => onChoose(box.value));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

// Tells a screen reader what happened, where others see it.
export const announce = (text) => {
  byId("announced").textContent = text;
};

// One tooltip for all charts; `lines` are [name, value] pairs under a title.
export const tip = el("div", { class: "tip", role: "tooltip", hidden: true });

export function showTip(event, title, lines) {
  tip.replaceChildren(
    el("strong", {}, title),
    el(
      "dl",
      {},
      lines.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > window.innerHeight ? event.clientY - box.height - 12 : below;
  tip.style.left = Math.max(left, 8) + "px";
  tip.style.top = Math.max(top, 8) + "px";
}

export const hideTip = () => {
  tip.hidden = true;
};

// A link to a file of the recording; each part is encoded, so that a path never becomes a URL.
export function fileLink(base, path, text) {
  const way = String(path).split("/").map(encodeURIComponent).join("/");
  return el(
    "a",
    { class: "file", href: (base ? base + "/" : "./") + way, title: path },
    text || path,
  );
}

// ---------- Where a number comes from ----------

// Every number says which layer measured it and in what sense. Outside tables use
// `figure(value, unit, {layer, kind})`; columns of the report carry both, `ownColumn(..., origin)`
// takes them. Kinds: clean, calibrated, raw, counted, rate (operations over a time), mixed (each
// row has its own origin: `byRow`), fact; {words} stands for any other.

export const CLEAN = { layer: "step clock", kind: "clean" };
export const RAW_CLOCK = { layer: "step clock", kind: "raw" };
// Steps of an imported trace have their profiler's times: none is a clean one.
export const isProfiled = (mark) => mark?.mode === "profiled";
export const stepClock = (mark) => (isProfiled(mark) ? RAW_CLOCK : CLEAN);
export const stepName = (mark) =>
  isProfiled(mark)
    ? [term("step", "step"), " under the profiler"]
    : [term("clean", "clean"), " ", term("step", "step")];
export const OWN_COUNT = { layer: "profstack", kind: "counted" };
export const FACT = { layer: "profstack", kind: "fact" };
export const CALIBRATED = { layer: "torch", kind: "calibrated" };
export const RAW_TORCH = { layer: "torch", kind: "raw" };
export const TORCH_COUNT = { layer: "torch", kind: "counted" };
export const RAW_CPROFILE = { layer: "cprofile", kind: "raw" };

const isClock = (layer) => layer === "step clock";
export const layerWords = (layer) =>
  !layer
    ? "profstack"
    : layer === "nsys"
      ? "Nsight Systems"
      : layer === "profstack" || isClock(layer)
        ? layer
        : "the " + layer + " layer";

const KIND_WORDS = {
  clean: ({ layer }) =>
    "clean: measured " +
    (layer && !isClock(layer) ? "by " + layerWords(layer) : "by the step clock") +
    " in steps that no layer watched",
  calibrated: ({ layer }) =>
    "calibrated: seen by " + layerWords(layer) + ", told at the speed of the clean steps",
  raw: ({ layer }) =>
    isClock(layer)
      ? "raw: by the step clock, with whatever was on in that slice"
      : "raw: as " + layerWords(layer) + " saw it, with what watching cost",
  counted: ({ layer, source }) => "counted by " + (source || layerWords(layer)),
  rate: ({ layer, source, over }) =>
    RATE_WORDS[over || "calibrated"](source || "the flops layer", layerWords(layer)),
  mixed: () =>
    "each row says on hover whose its number is, and whether it is clean, calibrated or raw",
  fact: () => "a fact about the run, no measurement",
};

// A rate is as its time is: the count is exact.
const RATE_WORDS = {
  clean: (counter) =>
    "clean: operations counted by " + counter + ", over the time of steps that no layer watched",
  calibrated: (counter, observer) =>
    "calibrated: operations counted by " +
    counter +
    ", over the time that " +
    observer +
    " saw, told at the speed of the clean steps",
  raw: (counter, observer) =>
    "raw: operations counted by " + counter + ", over the device time that " + observer + " saw",
};

// The words for {layer, kind, source} or {words}; null where nothing is known of them.
export const provenance = (origin) =>
  !origin
    ? null
    : origin.words || (KIND_WORDS[origin.kind] ? KIND_WORDS[origin.kind](origin) : null);

// A column whose rows are of several origins: of(record) gives each row's.
export const byRow = (column, of) => ({ ...column, layer: null, kind: "mixed", words: null, of });

// The column's own origin, or the row's.
export const originIn = (column, record) =>
  column.of ? { ...column, ...column.of(record) } : column;

const UNIT_WORDS = { s: "s", bytes: "bytes", flop: "FLOP", mac: "MAC", rate: "per second" };

// The value in full, to nine digits, then where it comes from.
export function numberTitle(value, column) {
  const full =
    column.unit === "plain"
      ? null
      : fullNumber(value) + (UNIT_WORDS[column.unit] ? " " + UNIT_WORDS[column.unit] : "");
  return [full, provenance(column)].filter(Boolean).join("\n");
}

// A number with its unit and, on hovering and for screen readers, its origin; a dash with the
// reason where it was not measured.
export function figure(value, unit, origin = {}) {
  if (value === null || value === undefined) return none(origin.reason);
  const words = numberTitle(value, { unit, ...origin });
  return el(
    "span",
    { class: "figure", title: words, "aria-description": provenance(origin) },
    formatValue(value, unit),
  );
}

// ---------- Commands, cards and lists ----------

// Commands in a text: between backticks or quotes, and options that stand alone with their values.
const OPTIONS_WITH_WORDS = "layers|skip|mode|compare|search|dtype|input|device";
const COMMANDS = new RegExp(
  [
    /`([^`]+)`/.source,
    /(?<!\w)'([a-z][^'\n]* [^'\n]*)'(?!\w)/.source,
    String.raw`(?<![\w-])(--(?:${OPTIONS_WITH_WORDS}) [\w,:.]*\w`,
    /--[a-z][a-z-]*[a-z](?:[ =]\d[\w.]*\w|[ =]\d)?/.source + ")",
  ].join("|"),
  "g",
);

// A short one stays in one piece: "--" at the end of a line reads as a dash.
export const commandCode = (text) => el("code", { class: text.length < 40 ? "whole" : null }, text);

export function withCommands(text) {
  const found = [];
  const whole = String(text);
  let last = 0;
  for (const match of whole.matchAll(COMMANDS)) {
    found.push(whole.slice(last, match.index), commandCode(match[1] || match[2] || match[3]));
    last = match.index + match[0].length;
  }
  found.push(whole.slice(last));
  return found;
}

const CHIP_KINDS = {
  complete: "good",
  recorded: "good",
  emitted: "good",
  partial: "fair",
  empty: "fair",
  skipped: "fair",
  failed: "bad",
  unavailable: "fair",
};

export const chip = (text, status) =>
  el("span", { class: "chip " + (CHIP_KINDS[status] || "fair") }, text || NONE);

export function card(name, value, detail, className) {
  return el(
    "div",
    { class: "card " + (className || "") },
    el("div", { class: "card-name" }, name),
    el("div", { class: "card-value" }, value),
    detail ? el("div", { class: "card-detail" }, detail) : null,
  );
}

export const asText = (item) => {
  if (item === null || item === undefined) return NONE;
  if (Array.isArray(item)) return item.map(asText).join(", ");
  if (typeof item === "object")
    return (
      item.text ||
      item.sentence ||
      Object.entries(item)
        .filter(([, value]) => value !== null)
        .map(([key, value]) => key.replaceAll("_", " ") + " " + asText(value))
        .join(", ")
    );
  return String(item);
};

export const pairs = (entries) =>
  el(
    "dl",
    { class: "pairs" },
    entries
      .filter(Boolean)
      .map(([name, value]) => [
        el("dt", {}, name),
        el(
          "dd",
          {},
          value === null || value === undefined || value === ""
            ? none("nothing was recorded of it")
            : value,
        ),
      ]),
  );

// Says on a button for a moment that it has copied.
export function showCopied(button) {
  const before = button.textContent;
  if (before === "copied") return;
  button.textContent = "copied";
  announce("copied");
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

export function command(text) {
  const button = el("button", { type: "button", class: "copy", title: "copy" }, "copy");
  button.addEventListener("click", () =>
    navigator.clipboard.writeText(text).then(
      () => showCopied(button),
      () => {},
    ),
  );
  return el(
    "span",
    { class: "command" },
    el("code", {}, text),
    navigator.clipboard ? button : null,
  );
}

// Parts of a step keep one colour on the whole page.
const PART_COLOURS = {
  "data wait": "var(--wait)",
  "making the batch": "var(--wait)",
  "before the model's first call": "var(--wait)",
  "after the step": "var(--accumulate)",
  Python: "var(--file-5)",
  forward: "var(--forward)",
  loss: "var(--loss)",
  backward: "var(--backward)",
  optimizer: "var(--optimizer)",
  idle: "var(--idle)",
  other: "var(--outside)",
  "not attributed": "var(--residual)",
  // Of the whole run.
  steps: "var(--forward)",
  "waiting for data": "var(--wait)",
  evaluation: "var(--loss)",
  "checkpoints and saving": "var(--optimizer)",
  "logging and callbacks": "var(--accumulate)",
  "start-up and imports": "var(--idle)",
  "model and data set-up": "var(--zero-grad)",
  "first step and compilation": "var(--backward)",
  shutdown: "var(--residual)",
  profstack: "var(--file-5)",
  "(optimizer)": "var(--optimizer)",
  "(wait)": "var(--wait)",
  "(zero_grad)": "var(--zero-grad)",
  "(loss)": "var(--loss)",
  "(gradient accumulation)": "var(--accumulate)",
  "(outside modules)": "var(--outside)",
  "(not attributed)": "var(--residual)",
};
export const partColour = (part) => PART_COLOURS[part.name] || "var(--outside)";

export const sentence = (text) =>
  withCommands(text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : "."));

// ---------- Formats ----------
// Numbers as people read them: three significant digits and the unit that fits.

export const NONE = "–";

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function threeDigits(value) {
  let decimals = 2;
  while (decimals && Number(value.toFixed(decimals)) >= 10 ** (3 - decimals)) decimals -= 1;
  return value.toFixed(decimals);
}

export function formatSeconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0) return "−" + formatSeconds(-value);
  if (value === 0) return "0 s";
  if (value >= 59.95) return longDuration(value);
  for (const [scale, unit] of [
    [1e-9, "ns"],
    [1e-6, "µs"],
    [1e-3, "ms"],
  ]) {
    if (value / scale < 999.5) return threeDigits(value / scale) + " " + unit;
  }
  return threeDigits(value) + " s";
}

function longDuration(value) {
  const seconds = Math.round(value);
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  const minutes = Math.round(value / 60);
  return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

export function formatBytes(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0) return "−" + formatBytes(-value);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let scaled = value;
  let at = 0;
  while (scaled >= 1023.5 && at < units.length - 1) {
    scaled /= 1024;
    at += 1;
  }
  const exact = at === 0 && Number.isInteger(scaled);
  return (exact ? String(scaled) : threeDigits(scaled)) + " " + units[at];
}

export function formatCount(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0) return "−" + formatCount(-value);
  if (value < 1) return String(Number(value.toPrecision(3)));
  const units = ["", "k", "M", "G", "T", "P", "E"];
  let scaled = value;
  let at = 0;
  while (scaled >= 999.5 && at < units.length - 1) {
    scaled /= 1000;
    at += 1;
  }
  // A scaled count is rounded as times and sizes are; of a whole number below 1000 nothing is.
  if (at) return threeDigits(scaled) + " " + units[at];
  return threeDigits(scaled).replace(/\.0+$/, "");
}

export const formatPercent = (share) =>
  !isNumber(share)
    ? NONE
    : share !== 0 && Math.abs(share) < 0.001
      ? "<0.1 %"
      : (100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0) + " %";

export const formatFactor = (value) => (isNumber(value) ? value.toFixed(value < 10 ? 2 : 1) : NONE);

// Whole numbers as they are, others to nine digits, as the page carries them: what adding them up
// leaves behind that is no figure.
export const fullNumber = (value) =>
  String(Number.isInteger(value) ? value : Number(value.toPrecision(9)));

export const formatPlain = (value) => (isNumber(value) ? fullNumber(value) : NONE);

export const FORMATS = {
  s: formatSeconds,
  bytes: formatBytes,
  count: formatCount,
  flop: formatCount,
  mac: formatCount,
  rate: formatCount,
  share: formatPercent,
  plain: formatPlain,
};

export function formatValue(value, unit) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  const format = FORMATS[unit];
  return format && typeof value === "number" ? format(value) : String(value);
}

// The end of a module's path, as many of its names as fit: the beginnings of many are the same.
export function tailOf(path, most) {
  const names = String(path).split(".");
  let from = 0;
  while (from < names.length - 1 && names.slice(from).join(".").length + (from ? 1 : 0) > most)
    from += 1;
  return (from ? "…" : "") + names.slice(from).join(".");
}

// The last parts of a path: what tells files apart, where the full one fits nowhere.
export function shortPath(path, parts = 3) {
  const names = String(path).split("/");
  return names.length <= parts ? String(path) : "…/" + names.slice(-parts).join("/");
}

// A line of a file; a cell of a notebook has lines of its own.
export const atLine = (name, line) =>
  isNumber(line) ? name + (/^cell \d+$/.test(name) ? ", line " : ":") + line : name;

export const plural = (count, word, many) =>
  (count ?? 0).toLocaleString("en") + " " + (count === 1 ? word : many || word + "s");

// Times that lie close together, with as many digits as tell them apart: at most `most` decimals.
export function fineSeconds(values, more = 0, most = 6) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  const gaps = sorted
    .slice(1)
    .map((value, at) => value - sorted[at])
    .filter((gap) => gap > 0);
  if (!gaps.length) return formatSeconds;
  const largest = sorted[sorted.length - 1];
  const [scale, unit] = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ].find(([one]) => largest >= one) || [1e-9, "ns"];
  const digits = Math.min(
    most,
    Math.max(0, Math.ceil(-Math.log10(Math.min(...gaps) / scale) + more - 1e-9)),
  );
  return (value) => (value / scale).toFixed(digits) + " " + unit;
}

// Both ends of an interval; the median may want to be written as they are.
export const spanFormat = (low, high) =>
  isNumber(low) && isNumber(high) && high > low && high < 59.95 && high - low < 0.1 * high
    ? fineSeconds([low, high], 0.5)
    : formatSeconds;

export const spanText = (low, high) =>
  isNumber(low) && isNumber(high)
    ? spanFormat(low, high)(low) + " – " + spanFormat(low, high)(high)
    : null;

export const formatWhole = (count) => count.toLocaleString("en-GB");

// A share near the whole, told well enough to see what is missing.
export const exactPercent = (share) => (isNumber(share) ? (100 * share).toFixed(1) + " %" : NONE);

export function medianOf(values) {
  if (!values.length) return null;
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
