// Hands the trace to Perfetto's page by a message between the two tabs, as Perfetto documents it:
// it is asked until it answers, since no event says when it has loaded.
(() => {
  const ORIGIN = "https://ui.perfetto.dev";
  const EVERY_MS = 100;
  const LONGEST_MS = 60000;
  const button = document.getElementById("hand");
  const said = document.getElementById("said");
  const say = (words) => {
    said.textContent = words;
  };

  // Opened before anything is waited for: later a browser would take it for a popup.
  button.addEventListener("click", async () => {
    const tab = window.open(ORIGIN);
    if (!tab) {
      say("The browser did not open a new tab: allow this page to open one.");
      return;
    }
    button.disabled = true;
    say("Reading the trace …");
    try {
      const answer = await fetch(button.dataset.trace);
      if (!answer.ok)
        throw new Error(
          "the trace could not be read (" + answer.status + "): is 'profstack view' still running?",
        );
      const buffer = await answer.arrayBuffer();
      say("Waiting for Perfetto …");
      await ready(tab);
      tab.postMessage({ perfetto: { buffer, title: button.dataset.title } }, ORIGIN, [buffer]);
      say("Handed over.");
    } catch (error) {
      say("Not handed over: " + error.message);
    }
    button.disabled = false;
  });

  function ready(tab) {
    return new Promise((resolve, reject) => {
      const started = performance.now();
      const finish = (settle, value) => {
        clearInterval(timer);
        window.removeEventListener("message", hear);
        settle(value);
      };
      const hear = (event) => {
        if (event.source === tab && event.origin === ORIGIN && event.data === "PONG")
          finish(resolve);
      };
      window.addEventListener("message", hear);
      const timer = setInterval(() => {
        if (tab.closed) finish(reject, new Error("its tab was closed"));
        else if (performance.now() - started > LONGEST_MS)
          finish(reject, new Error("Perfetto did not answer within a minute"));
        else tab.postMessage("PING", ORIGIN);
      }, EVERY_MS);
    });
  }
})();
