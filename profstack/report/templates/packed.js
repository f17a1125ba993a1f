// Data that is inflated only when a view asks for it: gzip in base64, each in a script element that
// no browser runs (its id is "pack-" and the name of the part).
const UNPACKABLE = typeof DecompressionStream === "function";

// The text of a packed part: unpack("plotly").then((text) => ...). Rejects where the browser cannot
// inflate, with a message that can be shown as it is.
async function unpack(name) {
  const source = byId("pack-" + name);
  if (!source) throw new Error("this page has no part called " + name);
  if (!UNPACKABLE) throw new Error("this browser cannot inflate the page's data (it has no DecompressionStream; browsers from 2023 on have it)");
  const binary = atob(source.textContent.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(inflated).text();
}

// What a page has before anything is inflated, so that whoever draws finds the usual shape.
function withEmptyParts(page) {
  return { tables: {}, steps: { points: [], total: 0, left_out: null }, slices: [], counters: [], call_trees: {}, roofline: null, ...page };
}

// How many rows a part has, whether it is inflated or not; 0 where the page has none.
const rowsOf = (page, name) => page.parts[name] || 0;

// Inflates parts and puts them where the drawing functions look for them: tables into `page.tables`,
// the others beside it. Each is inflated once, however often it is asked for.
const unpacking = new Map();

function need(page, names) {
  return Promise.all(names.filter((name) => rowsOf(page, name)).map((name) => {
    if (!unpacking.has(name)) unpacking.set(name, unpack(name).then((text) => merge(page, JSON.parse(text))));
    return unpacking.get(name);
  }));
}

function merge(page, part) {
  for (const [key, value] of Object.entries(part)) {
    if (key === "tables") Object.assign(page.tables, value);
    else page[key] = value;
  }
}
