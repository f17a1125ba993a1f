// Where a number comes from, in words: whose it is and in what sense it is to be read.
//
// For those who draw: `figure(value, unit, {layer, kind})` for a number outside tables; columns made
// by columns.py have both, `ownColumn(..., origin)` takes them. Kinds: clean, calibrated, raw, counted,
// rate (operations over a time), mixed (each row has an origin of its own: `byRow`), fact; where none
// of them has the right words, {words} has.
const CLEAN = { layer: "step clock", kind: "clean" };
const RAW_CLOCK = { layer: "step clock", kind: "raw" };
const OWN_COUNT = { layer: "profstack", kind: "counted" };
const FACT = { layer: "profstack", kind: "fact" };
const CALIBRATED = { layer: "torch", kind: "calibrated" };
const RAW_TORCH = { layer: "torch", kind: "raw" };
const TORCH_COUNT = { layer: "torch", kind: "counted" };
const RAW_WATCH = { layer: "watch", kind: "raw" };
const RAW_CPROFILE = { layer: "cprofile", kind: "raw" };

const isClock = (layer) => layer === "step clock";
const layerWords = (layer) => (!layer ? "profstack" : layer === "nsys" ? "Nsight Systems" : layer === "profstack" || isClock(layer) ? layer : "the " + layer + " layer");

const KIND_WORDS = {
  clean: ({ layer }) => "clean: measured " + (layer && !isClock(layer) ? "by " + layerWords(layer) : "by the step clock") + " in steps that no layer watched",
  calibrated: ({ layer }) => "calibrated: seen by " + layerWords(layer) + ", told at the speed of the clean steps",
  raw: ({ layer }) => (isClock(layer) ? "raw: by the step clock, with whatever was on in that slice" : "raw: as " + layerWords(layer) + " saw it, with what watching cost"),
  counted: ({ layer, source }) => "counted by " + (source || layerWords(layer)),
  rate: ({ layer, source, over }) => RATE_WORDS[over || "calibrated"](source || "the flops layer", layerWords(layer)),
  mixed: () => "each row says on hover whose its number is, and whether it is clean, calibrated or raw",
  fact: () => "a fact about the run, no measurement",
};

// A rate is as its time is: the count is exact.
const RATE_WORDS = {
  clean: (counter) => "clean: operations counted by " + counter + ", over the time of steps that no layer watched",
  calibrated: (counter, observer) => "calibrated: operations counted by " + counter + ", over the time that " + observer + " saw, told at the speed of the clean steps",
  raw: (counter, observer) => "raw: operations counted by " + counter + ", over the device time that " + observer + " saw",
};

// The words for {layer, kind, source} or {words}; null where nothing is known of them.
const provenance = (origin) => (!origin ? null : origin.words || (KIND_WORDS[origin.kind] ? KIND_WORDS[origin.kind](origin) : null));

// A column whose rows are of several origins: of(record) gives each row's.
const byRow = (column, of) => ({ ...column, layer: null, kind: "mixed", words: null, of });

// The column's own origin, or the row's.
const originIn = (column, record) => (column.of ? { ...column, ...column.of(record) } : column);

const UNIT_WORDS = { s: "s", bytes: "bytes", flop: "FLOP", mac: "MAC", rate: "per second" };

// The value in full, to nine digits, then where it comes from.
function numberTitle(value, column) {
  const full = column.unit === "plain" ? null : fullNumber(value) + (UNIT_WORDS[column.unit] ? " " + UNIT_WORDS[column.unit] : "");
  return [full, provenance(column)].filter(Boolean).join("\n");
}

// A number with its unit that says on hovering and to screen readers where it comes from; a dash with
// the reason where it was not measured.
function figure(value, unit, origin = {}) {
  if (value === null || value === undefined) return none(origin.reason);
  const words = numberTitle(value, { unit, ...origin });
  return el("span", { class: "figure", title: words, "aria-description": provenance(origin) }, formatValue(value, unit));
}
