// The page of a comparison: its views. Each table that has rows is one.

import { changeView } from "./changes.js";
import { comparisonView, drawComparisonHeader } from "./comparison.js";
import { glossaryView } from "./glossary.js";
import { startPage } from "./page.js";

function main() {
  startPage(
    ({ overview }) => [
      comparisonView,
      ...overview.tops.filter((top) => top.total).map(changeView),
      glossaryView,
    ],
    (page) => drawComparisonHeader(page.facts),
  );
}

main();
