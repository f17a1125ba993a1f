new Promise(done => {
  let last = performance.now();
  const changes = new MutationObserver(() => { last = performance.now(); });
  changes.observe(document,
    {subtree: true, childList: true, attributes: true, characterData: true});
  const look = () => {
    if (document.querySelector('main[aria-busy]')) last = performance.now();
    if (performance.now() - last < QUIET_MS) { requestAnimationFrame(look); return; }
    changes.disconnect();
    done();
  };
  requestAnimationFrame(look);
})
