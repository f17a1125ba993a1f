// Follows the links of every view as a reader would; at most `most` of each kind. Gives what was
// wrong as [why, address, where it stood], how many links there are of each kind, and how many were
// followed.
(async (most) => {
  const settle = async () => {
    await new Promise((done) => setTimeout(done, 0));
    for (let turn = 0; turn < 1000 && document.querySelector("main[aria-busy]"); turn += 1) await new Promise((done) => setTimeout(done, 5));
    // A browser without a window may leave a frame out.
    await new Promise((done) => {
      requestAnimationFrame(() => setTimeout(done, 0));
      setTimeout(done, 500);
    });
  };
  const goTo = async (address) => {
    if (location.hash === address) history.replaceState(null, "", "#");
    location.hash = address;
    await settle();
  };
  const view = () => document.querySelector(".view:not([hidden])");

  // All that can be unfolded is, so that every link is there.
  const links = new Map();
  for (const name of [...document.querySelectorAll("#views a")].map((one) => one.dataset.view)) {
    if (name === "all") continue;
    await goTo("#" + name);
    for (let turn = 0; turn < 3; turn += 1) {
      for (const one of view().querySelectorAll("details:not([open])")) one.open = true;
      for (const one of view().querySelectorAll("button")) if (/^(Show|and) \d+/.test(one.textContent)) one.click();
      if (!turn) for (const one of [...view().querySelectorAll(".tools button")].filter((button) => button.textContent === "all")) one.click();
      await settle();
    }
    for (const one of document.querySelectorAll('main a[href^="#"], header a[href^="#"]')) {
      const address = one.getAttribute("href");
      if (!links.has(address) && one.closest(".view:not([hidden]), header")) links.set(address, name + ": " + one.textContent.slice(0, 60));
    }
  }

  const failures = [], kinds = {};
  let followed = 0;
  for (const [address, from] of links) {
    const [way, query] = address.slice(1).split("?");
    const name = way.split("/")[0];
    const kind = name + (query ? "?" : way.includes("/") ? "/" : "");
    kinds[kind] = (kinds[kind] || 0) + 1;
    if (kinds[kind] > most) continue;
    followed += 1;
    const fail = (why) => failures.push([why, address.slice(0, 200), from]);
    await goTo(address);
    const note = document.getElementById("note");
    if (!note.hidden) { fail(note.textContent); continue; }
    if (!view()) { fail("it shows no view"); continue; }
    const inSight = (element) => {
      const box = element.getBoundingClientRect();
      const head = document.querySelector("header").getBoundingClientRect().bottom;
      if (!box.height || box.bottom < head || box.top > innerHeight) fail("what it names is not in sight: " + box.top);
    };
    const part = document.getElementById(way);
    if (part) { inSight(part); continue; }
    if (view().dataset.view !== name) fail("it shows " + view().dataset.view);
    if (way.includes("/")) {
      const marked = [...document.querySelectorAll(".marked")];
      if (marked.length !== 1 || !view().contains(marked[0])) { fail(marked.length + " rows are marked"); continue; }
      inSight(marked[0]);
      if (document.activeElement !== marked[0]) fail("the focus is elsewhere");
    }
    if (query) {
      const filter = document.getElementById("filter");
      if (filter.hidden) { fail("its filter is not told"); continue; }
      const rows = view().querySelectorAll("tbody tr").length;
      if (!rows) fail("its filter leaves nothing");
      filter.querySelector("a").click();
      await settle();
      if (!filter.hidden || location.hash.includes("?")) fail("its filter stays");
      if (view().querySelectorAll("tbody tr").length < rows) fail("rows are missing without its filter");
    }
  }
  return { failures, kinds, followed };
})
