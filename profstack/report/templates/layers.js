// The view "More layers": tables that layers of this or other packages declare in their own files.

import { append, byId, el } from "./dom.js";
import { makeTable, sourceCells } from "./table.js";

export const layersView = {
  id: "other-layers",
  title: "More layers",
  needs: ["layer_tables"],
  parts: [["layer-tables", drawLayerTables]],
};

function drawLayerTables(page) {
  const list = byId("layer-table-list");
  for (const one of page.layer_tables) {
    const box = el("div");
    append(list, [
      el(
        "section",
        {},
        el("h3", { class: "part" }, one.layer + ": " + one.title),
        el("p", { class: "lead" }, one.text),
        box,
      ),
    ]);
    const keys = one.table.columns.map((column) => column.key);
    makeTable(box, {
      table: one.table,
      name: one.title,
      cells: keys.includes("file") && keys.includes("line") ? sourceCells : {},
    });
  }
}
