[document.documentElement.scrollWidth <= innerWidth, [...document
  .querySelectorAll('.view:not([hidden]) *')].filter((one) => {
  const place = one.getBoundingClientRect();
  if (!place.width || place.right <= innerWidth + 1) return false;
  for (let box = one; box; box = box.parentElement) if (getComputedStyle(box).overflowX !==
    'visible') return false;
  return true;
}).map((one) => one.tagName + ' ' + one.className + ' ' + one.textContent.slice(0, 60))]
