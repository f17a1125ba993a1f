// Where a number comes from, in words: whose it is and in what sense it is to be read.
//
// For those who draw: `figure(value, unit, {layer, kind})` for a number outside tables; columns made
// by columns.py have both, `ownColumn(..., origin)` takes them. Kinds: clean, calibrated, raw, counted, fact.
const isClock = (layer) => layer === "step clock";
const layerWords = (layer) => (!layer ? "profstack" : layer === "nsys" ? "Nsight Systems" : layer === "profstack" || isClock(layer) ? layer : "the " + layer + " layer");

const KIND_WORDS = {
  clean: ({ layer }) => "clean: measured " + (layer && !isClock(layer) ? "by " + layerWords(layer) : "by the step clock") + " in steps that no layer watched",
  calibrated: ({ layer }) => "calibrated: seen by " + layerWords(layer) + ", told at the speed of the clean steps",
  raw: ({ layer }) => (isClock(layer) ? "raw: by the step clock, with whatever was on in that slice" : "raw: as " + layerWords(layer) + " saw it, with what watching cost"),
  counted: ({ layer, source }) => "counted by " + (source || layerWords(layer)),
  fact: () => "a fact about the run, no measurement",
};

// The words for {layer, kind, source}; null where nothing is known of them.
const provenance = (origin) => (origin && KIND_WORDS[origin.kind] ? KIND_WORDS[origin.kind](origin) : null);

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
