// What is typed into a table's search: words that must all be there, and conditions on columns.
//
//   conv backward            rows with both words anywhere
//   "aten::add "             a phrase, its spaces included
//   self>1ms calls>=10       conditions: column, one of > >= < <= = != :, value with or without unit
//   module:encoder           the column holds the text
// A column is named by its heading or its key; where no column has the name, it is plain text.
const CONDITION = /^([\p{L}][\p{L}\d_./-]*)(>=|<=|!=|>|<|=|:)(.+)$/u;
const SEEK_HELP = "Words that must all be there, \"a phrase\" in quotes, and conditions on columns: self>1ms calls>=10 module:encoder";

const UNIT_SCALES = {
  s: { ns: 1e-9, us: 1e-6, "µs": 1e-6, "μs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 },
  bytes: { b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
  share: { "%": 0.01 },
};
const COUNT_SCALES = { k: 1e3, m: 1e6, g: 1e9, t: 1e12, p: 1e15 };

// A figure as people write it, in the column's own unit; null for what is none.
function figureOf(text, unit) {
  const parts = /^([-+−]?[\d.]+(?:e[-+]?\d+)?)\s*([^\d\s]*)$/i.exec(text.trim());
  if (!parts) return null;
  const number = Number(parts[1].replace("−", "-"));
  const scale = parts[2] === "" ? 1 : (UNIT_SCALES[unit] || COUNT_SCALES)[parts[2].toLowerCase()];
  return Number.isFinite(number) && scale !== undefined ? number * scale : null;
}

const plainName = (name) => name.toLowerCase().replace(/[\s_/-]/g, "");

function columnCalled(name, columns) {
  const wanted = plainName(name);
  const tries = [(column) => plainName(column.label), (column) => plainName(column.key), (column) => plainName(column.key.replace(/_(s|bytes|flop|mac|share|per_s)$/, ""))];
  for (const one of tries) for (const column of columns) if (one(column) === wanted) return column;
  return null;
}

const unquoted = (text) => text.replaceAll('"', "");

const COMPARE = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };

// A condition as a function of a record; null where the text is none.
function conditionOf(text, columns) {
  const parts = CONDITION.exec(text);
  const column = parts && columnCalled(parts[1], columns);
  if (!column) return null;
  const [, , sign, rest] = parts;
  const value = unquoted(rest);
  if (isNumeric(column) && sign !== ":") {
    const figure = figureOf(value, column.unit);
    return figure === null ? null : (record) => isNumber(record[column.key]) && COMPARE[sign](record[column.key], figure);
  }
  const wanted = value.toLowerCase();
  const said = (record) => (record[column.key] === null || record[column.key] === undefined ? "" : formatValue(record[column.key], column.unit).toLowerCase());
  if (sign === ":") return (record) => said(record).includes(wanted);
  return COMPARE[sign] ? (record) => COMPARE[sign](said(record), wanted) : null;
}

const piecesOf = (typed) => typed.match(/(?:[^\s"]|"[^"]*"?)+/g) || [];

// A test of (record, its text in lower case) for what was typed; null where nothing was.
function seeker(typed, columns) {
  const pieces = piecesOf(typed);
  if (!pieces.length) return null;
  const tests = pieces.map((piece) => {
    const condition = conditionOf(piece, columns);
    const word = unquoted(piece).toLowerCase();
    return condition || ((record, text) => text.includes(word));
  });
  return (record, text) => tests.every((test) => test(record, text));
}

// What a piece that looks like a condition lacks; null where it lacks nothing. It is sought as text then.
function lackOf(text, columns) {
  const parts = CONDITION.exec(text);
  if (!parts || conditionOf(text, columns)) return null;
  const column = columnCalled(parts[1], columns);
  // Names hold colons and signs too: only a plain word before one is taken for a column.
  if (!column) return /^[\p{L}_]+$/u.test(parts[1]) && !/^[:=]/.test(parts[3]) ? "no column '" + parts[1] + "' here: sought as text" : null;
  return isNumeric(column) ? "'" + unquoted(parts[3]) + "' is no figure: sought as text" : "'" + parts[1] + "' holds words: = and : find them";
}

// Why what was typed may find nothing, said beside the count of rows.
const lacksOf = (typed, columns) => piecesOf(typed).map((piece) => lackOf(piece, columns)).filter(Boolean).join("; ");

function searchBox(name, onSearch, columns) {
  const example = (columns || []).find((column) => column.unit === "s");
  const hint = example ? ", or " + example.label.replaceAll(" ", "_") + ">1ms" : "";
  const input = el("input", { type: "search", placeholder: "search " + name + hint, "aria-label": "search " + name, title: columns ? SEEK_HELP : null, autocomplete: "off", spellcheck: "false" });
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => onSearch(columns ? input.value.trim() : input.value.trim().toLowerCase()), 80);
  });
  return input;
}
