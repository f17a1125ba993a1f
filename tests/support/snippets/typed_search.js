(async () => {
  const told = [];
  const set = window.setTimeout;
  const acts = [];
  window.setTimeout = (act, ms) => {
    if (ms !== 80) return set(act, ms);
    acts.push(act);
    return -acts.length;
  };
  const clear = window.clearTimeout;
  const cleared = [];
  window.clearTimeout = (one) => { cleared.push(one); clear(one); };
  seek('zz');
  told.push(names().length);
  seek(' self>4ms ');
  acts.at(-1)();
  window.setTimeout = set;
  window.clearTimeout = clear;
  told.push(cleared, names(), box.querySelector('.count').textContent);
  return told;
})()
