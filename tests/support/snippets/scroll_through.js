(async () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  for (let at = 0; at < document.body.scrollHeight; at += 700) {
    scrollTo(0, at);
    // What watches for being seen is told in the frame after. A browser without a window may leave
    // a frame out.
    for (let frame = 0; frame < 2; frame += 1)
      await new Promise((done) => {
        requestAnimationFrame(done);
        setTimeout(done, 500);
      });
  }
})()
