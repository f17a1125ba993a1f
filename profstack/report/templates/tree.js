// Tables whose rows lie inside one another: folded at will, sorted within their level, searched
// with the rows around what is found, drawn a stretch at a time, and walked through with the keys:
// up and down, right to unfold or go in, left to fold or go out, Enter for the row's address.
import { append, el, quiet } from "./dom.js";
import {
  asRecords,
  compareBy,
  copyButtons,
  emptyColumns,
  emptyNote,
  headCell,
  keptFocus,
  lacksOf,
  moduleFilter,
  ordered,
  rowWays,
  searchBox,
  seeker,
  viewAround,
  withProvenance,
} from "./table.js";
import { filterOf, go, markElement, onFilter, onKey, wayTo } from "./views.js";

const TREE_ROWS = 200;

// node: {record, children, parent, open, part (stands last), key, text (for the search)}
export function makeNode(record, parent, key, text) {
  const node = {
    record,
    parent,
    key,
    text: text.toLowerCase(),
    children: [],
    open: false,
    part: false,
  };
  if (parent) parent.children.push(node);
  return node;
}

function eachNode(nodes, visit, depth = 0) {
  for (const node of nodes) {
    visit(node, depth);
    eachNode(node.children, visit, depth + 1);
  }
}

// spec: table (columns, left_out, total), roots, name, sort, first [keys], hidden [keys],
// inOrder (key whose rising order is that of the table), levels [[text, depth]], controls,
// cell(column, node, depth, toggle) => td, note (said under the table),
// keyOf(record), view, moduleOf(record), reveal(record) (as in makeTable; reveal may change roots),
// ways(node) (links shown in the row's first cell when it is pointed at)
export function makeTree(box, spec) {
  const { table } = spec;
  const hidden = spec.hidden || [];
  const view = spec.view || viewAround(box);
  const empty = emptyColumns(table).filter((column) => !hidden.includes(column.key));
  const state = {
    roots: spec.roots,
    sort: spec.sort,
    wanted: null,
    empty: false,
    rows: TREE_ROWS,
    only: moduleFilter(table, filterOf(view), spec.moduleOf),
    listed: [],
    columns: [],
    active: null,
  };
  const head = el("thead");
  const body = el("tbody");
  const more = el("div", { class: "more" });
  const lack = el("span", { class: "lack", "aria-live": "polite" });
  const count = el("span", { class: "count", "aria-live": "polite" });
  const isCut = () => Boolean(state.wanted || state.only);

  // Without `whole` a folded row hides what is in it; a search opens the ways to what it found.
  function visibleRows(nodes, depth, rows, whole) {
    const { key, direction } = state.sort;
    const sorted =
      key === spec.inOrder && direction > 0
        ? nodes.slice()
        : nodes.slice().sort((a, b) => compareBy(key, direction)(a.record, b.record));
    sorted.sort((a, b) => a.part - b.part);
    for (const node of sorted) {
      if (isCut() && !node.matches) continue;
      rows.push([node, depth]);
      if (node.children.length && (whole || (isCut() ? node.inside : node.open)))
        visibleRows(node.children, depth + 1, rows, whole);
    }
    return rows;
  }

  function mark(nodes) {
    let any = false;
    for (const node of nodes) {
      node.inside = mark(node.children);
      node.matches =
        node.inside ||
        ((!state.only || state.only(node.record)) &&
          (!state.wanted || state.wanted(node.record, node.text)));
      any = any || node.matches;
    }
    return any;
  }

  function draw(focus) {
    if (isCut()) mark(state.roots);
    const columns = ordered(table.columns, spec.first || []).filter(
      (column) => !hidden.includes(column.key) && (state.empty || !empty.includes(column)),
    );
    const rows = visibleRows(state.roots, 0, []);
    const shownRows = rows.slice(0, state.rows);
    Object.assign(state, { listed: shownRows, columns });
    const refocus = keptFocus(head);
    head.replaceChildren(
      el(
        "tr",
        {},
        columns.map((column) =>
          headCell(column, state.sort, (sort) => {
            state.sort = sort;
            draw();
          }),
        ),
      ),
    );
    refocus();
    body.replaceChildren(...shownRows.map(([node, depth]) => treeRow(node, depth, columns)));
    setActive(
      Math.max(
        0,
        shownRows.findIndex(([node]) => node.key === state.active),
      ),
    );
    const counted = shownRows.length + " of " + table.total + " rows shown";
    if (count.textContent !== counted) count.textContent = counted;
    const left = rows.length - shownRows.length;
    more.replaceChildren();
    if (left > 0)
      more.append(
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              state.rows += TREE_ROWS;
              draw();
              setActive(shownRows.length, true);
            },
          },
          "Show " + Math.min(left, TREE_ROWS) + " more",
        ),
      );
    if (left > TREE_ROWS) more.append(quiet(left + " unfolded rows are left"));
    if (focus !== undefined)
      for (const button of body.querySelectorAll("button.twig"))
        if (button.dataset.key === String(focus)) button.focus();
  }

  function treeRow(node, depth, columns) {
    const cells = columns.map((column) =>
      withProvenance(spec.cell(column, node, depth, toggle), column, node.record),
    );
    if (spec.keyOf && view && cells.length && !node.group)
      rowWays(cells[0], view, String(spec.keyOf(node.record)), spec.ways ? spec.ways(node) : null);
    const open = isCut() ? node.inside : node.open;
    return el(
      "tr",
      {
        class: node.group ? "group" : node.part ? "part" : null,
        "aria-level": depth + 1,
        "aria-expanded": node.children.length ? String(Boolean(open)) : null,
        tabindex: "-1",
      },
      cells,
    );
  }

  // One row is in the order of the Tab key, with what can be pressed in it.
  function setActive(at, focus) {
    const row = body.children[at];
    if (!row) return;
    for (const other of body.children) if (other !== row) inOrder(other, false);
    inOrder(row, true);
    state.active = state.listed[at][0].key;
    if (focus) row.focus();
  }

  function inOrder(row, is) {
    row.tabIndex = is ? 0 : -1;
    for (const one of row.querySelectorAll("a, button:not(.twig)")) one.tabIndex = is ? 0 : -1;
  }

  function onArrow(event) {
    const row = event.target.closest("tr");
    if (event.target !== row || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = [...body.children].indexOf(row);
    const [node, depth] = state.listed[at];
    const open = !isCut() && node.open && node.children.length;
    const fold = (wanted) => {
      node.open = wanted;
      draw();
      setActive(
        state.listed.findIndex(([one]) => one === node),
        true,
      );
    };
    const ways = {
      ArrowDown: () => setActive(Math.min(at + 1, body.children.length - 1), true),
      ArrowUp: () => setActive(Math.max(at - 1, 0), true),
      Home: () => setActive(0, true),
      End: () => setActive(body.children.length - 1, true),
      ArrowRight: () => {
        if (node.children.length && !open && !isCut()) fold(true);
        else if (state.listed[at + 1] && state.listed[at + 1][1] > depth) setActive(at + 1, true);
      },
      ArrowLeft: () => {
        if (open) fold(false);
        else if (node.parent)
          setActive(
            Math.max(
              0,
              state.listed.findIndex(([one]) => one === node.parent),
            ),
            true,
          );
      },
      Enter: () => {
        if (spec.keyOf && view && !node.group) go(wayTo(view, String(spec.keyOf(node.record))));
      },
    };
    if (ways[event.key]) {
      event.preventDefault();
      ways[event.key]();
    }
  }

  function toggle(node, open) {
    node.open = open === undefined ? !node.open : open;
    draw(node.key);
  }

  // Marks the row of a key: the rows around it are unfolded and the search is taken off.
  function find(key) {
    let found = null;
    const look = () =>
      eachNode(state.roots, (node) => {
        if (!node.group && !found && String(spec.keyOf(node.record)) === key) found = node;
      });
    look();
    if (!found && !(spec.reveal && table.rows.length)) return false;
    if (spec.reveal) {
      const record = found
        ? found.record
        : asRecords(table).find((one) => String(spec.keyOf(one)) === key);
      if (!record) return false;
      spec.reveal(record);
      found = null;
      look();
    }
    if (!found) return false;
    if (isCut()) {
      mark(state.roots);
      if (!found.matches) {
        state.wanted = null;
        search.value = lack.textContent = "";
      }
    }
    for (let node = found.parent; node; node = node.parent) node.open = true;
    const at = visibleRows(state.roots, 0, []).findIndex(([node]) => node === found);
    if (at < 0) return false;
    state.rows = Math.max(state.rows, at + TREE_ROWS / 4);
    state.active = found.key;
    draw();
    markElement(body.children[at]);
    return true;
  }

  const unfold = (levels) => {
    eachNode(state.roots, (node, depth) => {
      node.open = depth < levels;
    });
    state.rows = TREE_ROWS;
    draw();
  };
  const levels = el(
    "div",
    { class: "choice" },
    (spec.levels || []).map(([text, depth]) =>
      el("button", { type: "button", onclick: () => unfold(depth) }, text),
    ),
  );
  const search = searchBox(
    spec.name,
    (typed) => {
      state.wanted = seeker(typed, table.columns);
      lack.textContent = lacksOf(typed, table.columns);
      state.rows = TREE_ROWS;
      draw();
    },
    table.columns,
  );
  const recordsOf = (rows) => rows.filter(([node]) => !node.group).map(([node]) => node.record);
  body.addEventListener("keydown", onArrow);
  append(box, [
    el(
      "div",
      { class: "tools" },
      search,
      spec.levels ? levels : null,
      spec.controls,
      count,
      lack,
      copyButtons(spec.name, () => ({
        columns: state.columns,
        all: recordsOf(visibleRows(state.roots, 0, [], true)),
        shown: recordsOf(state.listed),
      })),
    ),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {
          class: "tree" + (spec.ways ? " with-ways" : ""),
          role: "treegrid",
          "aria-label": spec.name,
        },
        head,
        body,
      ),
    ),
    more,
    spec.note || null,
    table.left_out ? el("p", { class: "left-out" }, table.left_out) : null,
    table.total > table.rows.length && !table.left_out
      ? el(
          "p",
          { class: "left-out" },
          table.rows.length +
            " of " +
            table.total +
            " rows are on this page (those with the most time); all are in recording.sqlite " +
            "and report.json.",
        )
      : null,
    emptyNote(empty, (show) => {
      state.empty = show;
      draw();
    }),
  ]);
  draw();
  if (spec.keyOf && view) onKey(view, find);
  if (view && moduleFilter(table, { module: "-" }, spec.moduleOf))
    onFilter(view, (filter) => {
      state.only = moduleFilter(table, filter, spec.moduleOf);
      state.rows = TREE_ROWS;
      draw();
    });
  return {
    draw,
    unfold,
    put: (roots) => {
      state.roots = roots;
      state.rows = TREE_ROWS;
      draw();
    },
  };
}

// The cell that folds: indented by its depth, then its content.
export function twigCell(node, depth, toggle, title, ...content) {
  const cell = el("td", { class: "text path", title });
  const indent = el("span", { class: "indent" });
  // Deep trees are indented less and less: the name must stay on the screen.
  const wide = depth <= 12 ? 14 * depth : 168 + 3 * (depth - 12);
  indent.style.width = wide + "px";
  // What stands before the name: the rest of the cell is the name's.
  cell.style.setProperty("--before", wide + 20 + "px");
  cell.append(indent);
  if (node.children.length) {
    const twig = el(
      "button",
      {
        type: "button",
        class: "twig",
        "aria-expanded": String(node.open),
        "aria-label": (node.open ? "fold " : "unfold ") + node.key,
        tabindex: "-1",
      },
      node.open ? "▾" : "▸",
    );
    twig.dataset.key = String(node.key);
    twig.addEventListener("click", () => toggle(node));
    twig.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        event.preventDefault();
        toggle(node, event.key === "ArrowRight");
      }
    });
    cell.append(twig);
  } else cell.append(el("span", { class: "twig" }));
  append(cell, content);
  return cell;
}

// The longest known path before this one: rows between may have been left out.
export function nearestParent(path, separator, known) {
  let cut = path.lastIndexOf(separator);
  while (cut > 0) {
    const found = known.get(path.slice(0, cut));
    if (found) return found;
    cut = path.lastIndexOf(separator, cut - 1);
  }
  return null;
}
