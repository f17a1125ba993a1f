(async () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  for (let at = 0; at < document.body.scrollHeight; at += 700) {
    scrollTo(0, at);
    // What watches for being seen is told in the frame after.
    for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
  }
})()
