[...document.querySelectorAll('h1, .view:not([hidden]) :is(h2, h3, h4, h5, h6)')].filter(one =>
  one.getClientRects().length).map(one => Number(one.tagName[1]))
