// Longer than two frames: what observers of sizes cause comes in the frame after.
new Promise(done => {
  let last = performance.now();
  const changes = new MutationObserver(() => { last = performance.now(); });
  changes.observe(document,
    {subtree: true, childList: true, attributes: true, characterData: true});
  const look = () => {
    if (document.querySelector('main[aria-busy]')) last = performance.now();
    if (performance.now() - last < 50) { requestAnimationFrame(look); return; }
    changes.disconnect();
    done();
  };
  requestAnimationFrame(look);
})
