window.sent = [];
window.openTab = () => {
  window.tab = new MessageChannel().port1;
  tab.postMessage = (message, origin, moved) => {
    const given = message.perfetto;
    sent.push([origin, given ? [given.title, given.buffer.byteLength, moved.length] : message]);
  };
  return tab;
};
window.open = (address) => { window.opened = address; return openTab(); };
window.hear = (given) => dispatchEvent(new MessageEvent('message',
  {data: 'PONG', origin: 'https://ui.perfetto.dev', source: tab, ...given}));
