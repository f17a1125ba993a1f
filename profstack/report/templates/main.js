// The page of a recording: its views.

import { benchmarkView } from "./benchmark.js";
import { flopsView } from "./flops.js";
import { glossaryView } from "./glossary.js";
import { memoryView } from "./memory.js";
import { environmentView, layersView, methodView } from "./method.js";
import { modulesView } from "./modules.js";
import { nsysView } from "./nsys.js";
import { kernelsView, operatorsView } from "./operators.js";
import { drawHeader, overviewView } from "./overview.js";
import { startPage } from "./page.js";
import { pythonView } from "./python.js";
import { rangesView } from "./ranges.js";
import { ranksView } from "./ranks.js";
import { sourceView } from "./source.js";

// In the order of the navigation.
const VIEWS = [
  overviewView,
  ranksView,
  modulesView,
  operatorsView,
  kernelsView,
  pythonView,
  sourceView,
  memoryView,
  flopsView,
  benchmarkView,
  rangesView,
  nsysView,
  layersView,
  methodView,
  environmentView,
  glossaryView,
];

function main() {
  startPage(
    () => VIEWS,
    (page) => drawHeader(page.facts, page.base),
  );
}

main();
