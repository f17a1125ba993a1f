// Longer than two frames: what observers of sizes cause comes in the frame after.
new Promise(done => {
  let last = performance.now();
  const changes = new MutationObserver(() => { last = performance.now(); });
  changes.observe(document,
    {subtree: true, childList: true, attributes: true, characterData: true});
  // A browser without a window may leave a frame out.
  const next = () => {
    const late = setTimeout(() => look(), 500);
    requestAnimationFrame(() => { clearTimeout(late); look(); });
  };
  let ended = false;
  const look = () => {
    if (ended) return;
    if (document.querySelector('main[aria-busy]')) last = performance.now();
    if (performance.now() - last < 50) { next(); return; }
    ended = true;
    changes.disconnect();
    done();
  };
  next();
})
