// What a line of the listing opens: the modules that its time was spent in, its figures in full,
// and the function that it stands in.
const PARTS_OF_LINE = 12;

// What a line's time was spent on: its modules, and what else is known of it.
function lineDetail(view, file, record) {
  const parts = (view.page.tables.module_lines ? asRecords(view.page.tables.module_lines) : []).filter((one) => one.file === record.file && one.line === record.line).sort((a, b) => lineTime(b) - lineTime(a));
  const around = functionAround(view, file, record.line);
  const figures = Object.keys(LINE_HEADS).filter((key) => view.meta[key] && isNumber(record[key])).map((key) => [LINE_HEADS[key], figure(record[key], view.meta[key].unit, view.meta[key])]);
  return el("div", { class: "line-parts" },
    el("div", {}, el("h4", {}, "by module"), parts.length ? partList(parts) : el("p", { class: "quiet" }, "It is not known which modules its time was spent in: " + (isNumber(record.python_s) ? "the slice with lines saw none." : "it did not run while lines were traced."))),
    el("div", {}, el("h4", {}, "figures"), pairs([...figures, record.memory_source ? ["second source is", record.memory_source] : null, record.reason ? ["not whole", record.reason] : null, around ? ["in function", functionLink(view, file, around)] : null])));
}

function partList(parts) {
  const most = Math.max(...parts.map(lineTime)) || 1;
  const rows = parts.slice(0, PARTS_OF_LINE).map((part) => {
    const fill = el("span", { class: "fill", "aria-hidden": "true" });
    fill.style.width = (100 * lineTime(part)) / most + "%";
    return el("li", {}, fill, el("span", { class: "top-name" }, part.module === null ? el("span", { class: "quiet" }, "outside modules") : linkTo("modules", part.module, part.module),
      part.module !== null && !part.module.startsWith("(") ? linkFiltered("operators", { module: part.module }, "operators") : null),
      el("span", { class: "top-time" }, figure(lineTime(part), "s", RAW_TORCH)), el("span", { class: "top-time" }, part.backward_s ? [figure(part.backward_s, "s", RAW_TORCH), " backward"] : ""));
  });
  return el("ol", { class: "parts" }, rows, parts.length > PARTS_OF_LINE ? el("li", { class: "quiet" }, plural(parts.length - PARTS_OF_LINE, "more module") + ", in the table below") : null);
}

// The function that a line stands in, by the indentation of the text above it.
function functionAround(view, file, line) {
  if (!file.text) return null;
  const indentOf = (text) => text.length - text.trimStart().length;
  let indent = indentOf(file.text[line - 1] || "");
  for (let at = line - 2; at >= 0 && indent > 0; at -= 1) {
    const text = file.text[at];
    if (!text.trim() || /^\s*[)\]}#]/.test(text) || indentOf(text) >= indent) continue;
    indent = indentOf(text);
    const [, name] = /^\s*(?:async\s+)?def\s+(\w+)/.exec(text) || [];
    if (name) return { name, line: at + 1 };
  }
  return null;
}

// Its row in the Python view, where cProfile has one: it begins at its first decorator.
function functionLink(view, file, around) {
  const records = view.page.tables.functions ? asRecords(view.page.tables.functions) : [];
  const row = records.find((one) => one.file === file.file && one.name === around.name && one.line <= around.line && one.line > around.line - 10);
  return row ? linkTo("python", row.file + ":" + row.line + ":" + row.name, row.name) : around.name;
}
