// The page of a history: one view with a chart and a table for each program.

import { byId, plural, visible } from "./dom.js";
import { historyView } from "./history.js";
import { startPage } from "./page.js";

function main() {
  startPage(
    () => [historyView],
    ({ facts: { programs } }) => {
      byId("script").textContent = visible(programs.map((each) => each.script).join(", "));
      const runs = programs.reduce((sum, each) => sum + each.runs.length, 0);
      byId("status").append(plural(runs, "run"));
    },
  );
}

main();
