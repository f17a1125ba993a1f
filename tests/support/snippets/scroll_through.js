(async () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  for (let at = 0; at < document.body.scrollHeight; at += 700) {
    scrollTo(0, at);
    await new Promise(done => setTimeout(done, 20));
  }
})()
