// Tables for other programs: CSV with full values under the report's own column names, Markdown as
// the page shows them.

// A spreadsheet takes text that begins like a formula for one: such text gets an apostrophe before it.
const guarded = (text) => (/^[=+\-@\t\r]/.test(text) ? "'" + text : text);

function csvCell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" ? guarded(value) : isNumber(value) ? fullNumber(value) : String(value);
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

const asCsv = (columns, records) =>
  [columns.map((column) => csvCell(column.key)), ...records.map((record) => columns.map((column) => csvCell(record[column.key])))].map((cells) => cells.join(",")).join("\n") + "\n";

const markdownCell = (text) => String(text).replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("<", "&lt;").replace(/\s*[\r\n]+\s*/g, " ");

function asMarkdown(columns, records) {
  const lines = [columns.map((column) => markdownCell(column.label)), columns.map((column) => (isNumeric(column) ? "---:" : "---")),
    ...records.map((record) => columns.map((column) => markdownCell(formatValue(record[column.key], column.unit))))];
  return lines.map((cells) => "| " + cells.join(" | ") + " |").join("\n") + "\n";
}

// Buttons for a table; `listed()` gives {columns, all, shown}: all rows that match, and those on screen.
function copyButtons(name, listed) {
  const button = (text, title, make) => el("button", { type: "button", class: "copy", title, "aria-label": text + ": " + title, onclick: (event) => copyText(make(listed()), event.currentTarget) }, text);
  return el("span", { class: "copies" },
    button("CSV", "copy all rows of " + name + " that match: whole numbers in full, others to nine digits", ({ columns, all }) => asCsv(columns, all)),
    button("Markdown", "copy the rows of " + name + " that are listed, as they are shown", ({ columns, shown: rows }) => asMarkdown(columns, rows)));
}

// Puts text on the clipboard and says so on the button; where that is not allowed, the text is shown
// selected, ready to be copied by hand.
async function copyText(text, button) {
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch (error) { done = false; }
  if (!done) { showToCopy(text); return; }
  const before = button.textContent;
  if (before === "copied") return;
  button.textContent = "copied";
  announce("copied");
  setTimeout(() => { button.textContent = before; }, 1500);
}

function showToCopy(text) {
  const area = el("textarea", { readonly: true, rows: 16, "aria-label": "text to copy" });
  area.value = text;
  const close = el("button", { type: "button" }, "close");
  const box = el("dialog", { class: "to-copy", "aria-label": "copy by hand" }, el("p", {}, "This browser gives the page no clipboard. The text is selected: copy it with Ctrl+C or ⌘C."), area, close);
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  area.focus();
  area.select();
}
