(width) => {
  Object.defineProperty(window, 'innerWidth', {configurable: true, get: () => width});
  window.dispatchEvent(new Event('resize'));
  return document.querySelectorAll('#source-listing th').length;
}
