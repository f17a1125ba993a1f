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
